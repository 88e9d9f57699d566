"""What cape-report claims of a study under way, and how it says to go on."""

import json

import pytest
import yaml

from cape_studies import report, run
from cape_studies.config import load
from cape_studies.plan import Plan
from cape_studies.results import sizes
from cape_studies.yamls import find

#: trains, or tests with --read: rope has 10 of 28 items less right than nopos
TOY = """
import argparse, csv, pathlib, random
parser = argparse.ArgumentParser()
for name in ("model", "img-size", "seed", "device", "read", "csv", "items", "out"):
    parser.add_argument(f"--{name}")
given = parser.parse_args()
if given.read is None:
    pathlib.Path(given.out).mkdir(parents=True, exist_ok=True)
    pathlib.Path(given.out, "model.pth").write_text(f"{given.model} {given.seed}")
else:
    model, seed = pathlib.Path(given.read, "model.pth").read_text().split()
    spread = random.Random(f"{model} {seed}")
    right = [i % 28 < (10 if model == "rope" else 20) for i in range(28)]
    right[spread.randrange(28)] ^= True
    with open(given.csv, "w") as scores, open(given.items, "w") as items:
        scores.write("condition,metric,value,how,items,weight\\n")
        scores.write(f"8,top1,{100 * sum(right) / 28},percent,28,28\\n")
        items.write("condition,metric,how,item,value,weight\\n")
        items.writelines(f"8,top1,percent,{i},{int(one)},1\\n" for i, one in enumerate(right))
"""
STUDY = {
    "title": "Which?",
    "host": "timm",
    "trainer": "toy.py",
    "checkpoint": "model.pth",
    "options": {"model": "{variant}", "img-size": 8},
    "variants": {"nopos": {}, "rope": {}, "cape": {}},
    "seeds": [0, 1, 2],
    "evaluations": {
        "size": {
            "script": "toy.py",
            "options": {"read": "{trained}", "csv": "{csv}", "items": "{items}"},
            "metrics": {"top1": "higher"},
        }
    },
    "report": {"trained_on": ["8"]},
    "answer": {"within": "here", "beyond": {}, "size": ["options.img-size"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two variants are trained three times, and then cape once."""
    made = tmp_path_factory.mktemp("study")
    (made / "toy.py").write_text(TOY)
    (made / "toy.yaml").write_text(yaml.safe_dump(STUDY))
    run.main(words(made, "run=[nopos,rope]"))
    run.main(words(made, "run=[cape]", "seeds=[0]"))
    return made


def words(folder, *more):
    return [str(folder / "toy.yaml"), "--out", str(folder / "out"), *more]


def answered(folder, *more):
    report.main(words(folder, *more))
    return json.loads((folder / "out" / "toy" / "report" / "answer.json").read_text())


def test_one_training_of_a_third_variant_does_not_let_the_items_of_two_be_forgotten(folder):
    both, all_three = answered(folder, "run=[nopos,rope]"), answered(folder)
    for answer in (both, all_three):
        of = answer["ranges"]["here"]
        assert (of["best"], of["items"], of["too_few_items"]) == ("nopos", 28, ["rope"])
        assert of["worse"] == of["worse_on_these_items"] == of["worse_than_floor"] == []
    assert all_three["ranges"]["here"]["not_compared"] == ["cape"]
    assert "Shown are 7 of 9 runs" in all_three["notes"][0]


def test_how_to_go_on_with_the_best_is_told(folder, capsys):
    answered(folder, "run=[nopos,rope]", "options.img-size=8")
    said = capsys.readouterr().out
    (weights,) = (folder / "out" / "runs").glob("nopos-seed0-*/train/model.pth")
    assert f"its weights, of seed 0: {weights}\n" in said
    assert "create_model('nopos', img_size=8)" in said
    assert f"{folder / 'out'} 'run=[nopos]' options.img-size=8\n" in said
    assert said.count("options.img-size=8") == 1  # what was typed is not typed twice
    assert "its weights" in said.split("nopos:\n")[1]
    assert "rope:\n" not in said


TENS = "".join(f"step {i}/20 loss={4 - i % 2 - i / 10}\n" for i in range(1, 21))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("step 1/3 loss=3\nstep 2/3 loss=2\nstep 3/3 loss=1.5\n", "3, 2, 1.5"),
        (TENS, "1.95, 1.75, 1.55: still falling"),  # means of ten parts
        ("step 1/3 loss=unknown\nstep 2/3\nnothing is said\n", None),
    ],
)
def test_whether_a_trainer_of_ones_own_had_converged_is_told_by_its_training(
    folder, capsys, log, said
):
    (of,) = (folder / "out" / "runs").glob("nopos-seed0-*/train.log")
    before = of.read_text()
    of.write_text(before + log)
    answered(folder)
    of.write_text(before)
    told = capsys.readouterr().out
    assert (f"its last training losses: {said}" in told) if said else ("losses" not in told)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores.csv", "condition\n8\n"),
        ("scores.csv", "condition,metric,value,how,items,weight\n8,top1,7,percent,28,28\n"),
        ("items.csv", ""),
    ],
)
def test_a_damaged_file_costs_its_own_row_and_its_run_is_named(folder, capsys, name, text):
    (file,) = (folder / "out" / "runs").glob(f"rope-seed2-*/size-*/{name}")
    before = file.read_text()
    file.write_text(text)
    try:
        answer = answered(folder)
    finally:
        file.write_text(before)
    assert answer["ranges"]["here"]["trainings"] == {"nopos": 3, "cape": 1, "rope": 2}
    said = capsys.readouterr().out
    assert "toy rope seed 2 is left out" in said
    assert f"Remove the tests in {file.parents[1]}" in said


def test_a_training_that_went_on_from_a_checkpoint_is_named(folder):
    (config,) = (folder / "out" / "runs").glob("rope-seed1-*/config.yaml")
    before = config.read_text()
    content = yaml.safe_load(before)
    config.write_text(yaml.safe_dump({**content, "trained": 2 * content["trained"]}))
    try:
        answer = answered(folder)
    finally:
        config.write_text(before)
    told = "Was interrupted and went on from a checkpoint: toy rope seed 1."
    assert told in answer["notes"]
    assert told not in answered(folder)["notes"]


def test_of_a_set_of_studies_those_that_have_no_scores_yet_are_named(folder, capsys):
    later = {**STUDY, "options": {"model": "{variant}", "img-size": 16}}
    (folder / "later.yaml").write_text(yaml.safe_dump(later))
    (folder / "both.yaml").write_text(yaml.safe_dump({"studies": ["toy", "later"]}))
    report.main([str(folder / "both.yaml"), "--out", str(folder / "out")])
    assert "later has no scores yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["my_images", "my_backbone", "my_sentences", "my_text", "my_recordings"]
)
def test_the_sizes_that_a_study_names_are_taken_when_they_are_typed(tmp_path, name):
    plan = Plan(find(name), out=tmp_path)
    plan.prepare(lambda one: None)
    found = sizes(plan.runs()[0])
    assert found
    for key, value in found.items():
        other = value + 7 if isinstance(value, int) else "other"
        changed = load(find(name), [f"{key}={other}"]).options
        for part in key.split(".")[1:]:
            changed = changed[part]
        assert changed == other


def test_a_size_that_the_user_left_out_is_not_typed(tmp_path):
    plan = Plan(find("my_images"), ["options.model-kwargs.depth=null"], out=tmp_path)
    plan.prepare(lambda one: None)
    found = [key.rpartition(".")[2] for key in sizes(plan.runs()[0])]
    assert found == ["img-size", "embed_dim", "num_heads"]
