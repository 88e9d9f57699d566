"""The page of make demo, its studies, and the lines that tell how far trainings are."""

import io
import re
from types import SimpleNamespace

import pytest
from counting import STUDY

from cape_studies.experiments import progress, report, report_read, steps, study, taste

TASTE = {
    "variant": "many",
    "condition": "long",
    "seen": "Counted far: {variant} with many, {baseline} with few.",
    "more": "Numbers are cheap.",
    "evidence": ["demo", "no_such_study"],
}
PARTS = study.read_yaml(study.find("taste"))["studies"]


# --- the page


def page_of(cape_run, tmp_path, **changes) -> str:
    cape_run(taste={**TASTE, **changes})
    report.main([str(tmp_path / "out" / "counting")])
    return (tmp_path / "out" / "counting" / "report" / "index.html").read_text("utf-8")


def test_the_page_says_what_is_seen_with_commands_and_evidence_and_needs_no_other_file(
    cape_run, tmp_path
):
    page = page_of(cape_run, tmp_path)
    assert "Counted far: 10 with many, 6 with few." in page
    assert page.count("One training each: a taste, no evidence.") == 2  # above, and for the host
    assert "not what the protocol expects" not in page
    assert re.search(r'<a href="file://\S+/results/demo.md">demo</a>, no_such_study\.', page)
    assert re.search(r"OMP_NUM_THREADS=\d+ \S*python\S* \S*count.py --steps 5", page)
    assert page.count("<img ") == page.count('src="data:image/png;base64,') == 1
    assert not re.search(r"(src|href)=\"(?!data:|file:)", page)


def test_the_page_says_when_the_variant_is_not_ahead(cape_run, tmp_path):
    evaluations = {**STUDY["evaluations"]["count"], "metrics": {"count": "lower"}}
    cape_run(taste=TASTE, evaluations={"count": evaluations})
    report.main([str(tmp_path / "out" / "counting")])
    page = (tmp_path / "out" / "counting" / "report" / "index.html").read_text("utf-8")
    assert "This is not what the protocol expects: many was to be ahead." in page


def test_a_training_that_is_not_done_is_said(cape_run, tmp_path):
    cape_run("--variants", "few", taste=TASTE)
    report.main([str(tmp_path / "out" / "counting")])
    page = (tmp_path / "out" / "counting" / "report" / "index.html").read_text("utf-8")
    assert "Not all trainings of this host are done." in page


def test_a_study_without_a_taste_keeps_the_whole_report(cape_run, tmp_path):
    cape_run()
    report.main([str(tmp_path / "out" / "counting")])
    page = (tmp_path / "out" / "counting" / "report" / "index.html").read_text("utf-8")
    assert "a taste" not in page
    assert "<table" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"variant": "more"}, "taste.variant: no 'more'; there is few, many"),
        ({"seen": "{cape} is ahead"}, "taste.seen: no 'cape'; there is baseline, variant"),
    ],
)
def test_a_taste_that_does_not_fit_its_study_is_refused(cape_run, change, said):
    assert said in cape_run(taste={**TASTE, **change}, fails=2)


def test_a_condition_that_was_not_tested_is_refused(cape_run, tmp_path):
    cape_run(taste={**TASTE, "condition": "far"})
    (result,) = report_read.studies([tmp_path / "out" / "counting"])
    with pytest.raises(ValueError, match=r"taste.condition: no 'far'; there is long, short"):
        taste.sentence(result)


# --- the studies of make demo


def test_make_demo_trains_two_variants_of_each_host_once_and_names_evidence_that_exists():
    assert [study.load(study.find(name))[0].host for name in PARTS] == ["timm", "fairseq", "espnet"]
    for name in PARTS:
        (one,) = study.load(study.find(name))
        assert one.taste is not None
        assert sorted(one.run) == sorted([one.report.baseline, one.taste.variant])
        assert len(one.seeds) == 1
        assert not one.needs
        assert one.taste.condition not in one.report.trained_on
        assert all(taste._link(page) for page in one.taste.evidence)


# --- how far a training is


def run_of(host: str, trainer=None, recipe=None, **options) -> SimpleNamespace:
    about = SimpleNamespace(host=host, trainer=trainer, name="study")
    settings = {"recipe": recipe or {}}
    return SimpleNamespace(study=about, options=options, settings=settings, variant="v", seed=0)


@pytest.mark.parametrize(
    ("run", "said", "share"),
    [
        (run_of("timm", trainer="t.py"), "step 12/600 loss=1\nstep 300/600 loss=0.5\n", 0.5),
        (run_of("timm", epochs=4), "Train: 1 [  50/100 ( 50%)]  Loss: 1", 0.375),
        (run_of("fairseq", **{"max-update": 700}), "| num_updates=350 | lr=0.1", 0.5),
        (
            run_of("espnet", recipe={"max_epoch": 9}, max_epoch=10, num_iters_per_epoch=30),
            "INFO: 3epoch:train:1-15batch: iter_time=0.1",
            0.25,
        ),
        (run_of("espnet", max_epoch=10), "3epoch:train:1-15batch: iter_time", 0.2),
        (run_of("timm", trainer="t.py"), "loading\n", None),
        (run_of("fairseq"), "num_updates=350", None),
    ],
)
def test_the_hosts_logs_tell_how_much_of_a_training_is_done(run, said, share):
    assert progress.share(run, said) == share


def test_without_a_terminal_a_training_has_a_line_after_each_quarter(tmp_path, monkeypatch):
    log, clock = tmp_path / "train.log", iter(range(0, 1000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    run = run_of("timm", trainer="t.py")
    run.training = SimpleNamespace(log=log, done=lambda: False)
    out = io.StringIO()
    line = progress.Line(run, out, 0)
    for step in (0, 10, 20, 30, 40, 60, 100):
        log.write_text(f"step {step}/100 loss=1\n")
        line.look()
    told = out.getvalue().splitlines()
    assert [one.split(",")[0] for one in told] == [
        "study v seed 0: 30%",
        "study v seed 0: 60%",
    ]
    assert all(re.search(r"\d\d:\d\d left$", one) for one in told)


# --- the threads that a training has


@pytest.mark.parametrize(("given", "threads"), [("", "1"), ("2", "2"), ("2,1", "1")])
def test_a_training_on_the_cpu_has_one_thread_or_what_the_user_says(monkeypatch, given, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert steps.environment(gpus=0)["OMP_NUM_THREADS"] == threads
    assert steps.environment(gpus=1).get("OMP_NUM_THREADS") == given
