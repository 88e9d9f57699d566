"""``cape-run`` from its command line to scores."""

import re

import pytest
import yaml
from counting import HERE, STUDY

from cape_studies import process, run


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("3", "3")])
def test_a_training_on_the_cpu_has_one_thread_or_what_the_user_says(
    monkeypatch, tmp_path, given, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    with process.locked(tmp_path / "lock") as lock:
        process.call(["printenv", "OMP_NUM_THREADS"], tmp_path / "log", [lock])
    assert process.last_lines(tmp_path / "log")[-1] == threads


def test_while_a_study_runs_n_of_n_and_the_time_left_are_said(cape_run):
    said = cape_run("--jobs", "1")
    assert re.search(r"\(1 of 2 runs, about \d+ min left\)", said)
    assert "(2 of 2 runs)" in said


def test_an_estimate_times_each_variant_with_its_tests_and_trains_nothing(cape_run, tmp_path):
    step = {"script": str(HERE / "count.py"), "options": {"facts": "{out}"}}
    step["facts"] = {"_target_": "counting.timed", "updates": 60_000}
    quick = {"options": {"steps": 1}}
    said = cape_run("--estimate", "run=[few]", prepare={"numbers": step}, quick=quick)
    assert "ms an update" in said
    assert re.search(r"the tests of a training: \d+ s", said)
    assert "1 of 1 trainings are left, with their tests: " in said
    assert not [*(tmp_path / "out").glob("runs/*/train")]


@pytest.mark.parametrize("words", ["{}", "words={} seeds=[3] run=[few]", "{} --jobs 1"])
def test_a_folder_may_have_an_equals_sign_and_changes_may_stand_behind_it(
    cape_run, tmp_path, words
):
    data = tmp_path / "lr=1" / "x"
    data.mkdir(parents=True)
    needs = {"words": {"what": "words"}}
    options = {"steps": 1, "read-not": "{words}"}
    given = [word.format(data) for word in words.split()]
    said = cape_run("--dry-run", "--data", *given, needs=needs, options=options)
    assert f"--read-not {data} " in said
    assert "missing: nothing, and " in said
    assert ("seed3" in said) == ("seeds=[3]" in words)
    assert ("many" in said) == ("run=" not in words)


def test_the_words_for_cape_report_name_each_folder_of_data_again(cape_run, tmp_path):
    both = {name: {"what": name} for name in ("one", "other")}
    (tmp_path / "data").mkdir()
    words = [f"--data={name}={tmp_path / 'data'}" for name in both]
    said = cape_run(*words, "run=[few]", needs=both)
    assert f"counting.yaml 'run=[few]' {' '.join(words)}" in said


# --- refusals


@pytest.mark.parametrize("out", ["/proc/out", "/dev/null/out"])
def test_a_folder_that_cannot_be_written_is_told(cape_run, out):
    said = cape_run("--out", out, "run=[few]", fails="few seed 0: [Errno ")
    assert f"'{out}" in said


ANSWER = {"floor": "few", "within": "as in training", "beyond": {}}
PHOTOS = {"photos": {"what": "photos", "source": "me", "layout": "*.jpg", "files": ["*.jpg"]}}


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["run=[none]"], {}, "run: no 'none'; there is few, many"),
        (["options.stpes=4"], {}, "there is no options.stpes: options has steps; +options.stpes"),
        ([], {"trainer": "nowhere.py"}, "nowhere.py does not exist"),
        (["--data", "x=."], {}, "--data x=.: this study needs no data"),
        ([], {"options": {"steps": "{csv}"}}, "'{csv}': no 'csv' at that step; there is variant"),
        ([], {"trainer": None}, "no train.py of timm"),
        ([], {"trainer": None, "host": "transformers"}, "no options.model-type for few"),
        (["--out", "a,b"], {"host": "fairseq"}, "a,b has ,, at which fairseq splits paths"),
        ([], {"needs": PHOTOS}, "give --data photos=DIR: photos (me), laid out as *.jpg"),
        (["--data", str(HERE)], {"needs": PHOTOS}, f"{HERE} has no *.jpg: photos is photos (me)"),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_starts(
    cape_run, tmp_path, arguments, changes, message
):
    said = cape_run(*arguments, fails=2, **changes)
    assert said.startswith("cape-run: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


FEW_ITEMS = {
    "host": "espnet",
    "answer": ANSWER,
    "report": {**STUDY["report"], "metric": "wer"},
    "evaluations": {
        "count": {**STUDY["evaluations"]["count"], "metrics": {"count": "higher", "wer": "lower"}}
    },
    "prepare": {
        "numbers": {
            "script": str(HERE / "count.py"),
            "options": {"facts": "{out}"},
            "facts": {"_target_": "counting.with_items", "items": 28},
        }
    },
}


def test_where_no_claim_is_possible_nothing_is_trained_before_the_user_agrees(cape_run, tmp_path):
    said = cape_run(fails=2, **FEW_ITEMS)
    assert "28 test items, 30 are needed" in said
    assert "--yes" in said
    assert not [*(tmp_path / "out").glob("runs/*/train")]
    enough = yaml.safe_load(yaml.safe_dump(FEW_ITEMS))
    enough["prepare"]["numbers"]["facts"]["items"] = 3000
    failing = {"steps": 3, "fail": True}
    seeds = "seeds=[0,1,2]"
    said = cape_run(seeds, "run=[few,many]", fails="few seed 0: ", options=failing, **enough)
    assert "3,000 test items: differences of " in said
    assert [*(tmp_path / "out").glob("runs/*/train")]


def test_list_shows_every_study_with_its_cost(capsys):
    run.main(["--list"])
    said = capsys.readouterr().out
    assert "cifar10 (timm): CIFAR-10, trained at 32²" in said
    assert "a CPU core a training" in said
    names = [line.split()[0].rstrip(":") for line in said.splitlines() if line[0] != " "]
    assert [name.startswith("my_") for name in names] == sorted(
        (name.startswith("my_") for name in names), reverse=True
    )
    assert names.index("my_images") < names.index("cifar10") < names.index("imagenet_224")
    assert max(map(len, said.splitlines())) <= 100
