"""cape-report on a small study folder, written here as cape-run writes it."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from cape_studies.experiments import report, report_figures, report_read
from cape_studies.experiments.report_scores import Scores
from lab_support import refused

SIZES = ("24", "32", "64")
STUDY = {
    "title": "A small study <of positions> & sizes",
    "host": "timm",
    "protocol": "Two variants, the same recipe. Expected: cape flatter beyond the trained size.",
    "options": {"epochs": 2},
    "variants": {"cape": {}, "sinpos": {}, "nopos": {}},
    "seeds": [0, 1, 2],
    "evaluations": {"sizes": {"metrics": {"top1": "higher"}}},
    "report": {
        "baseline": "sinpos",
        "x_label": "image side (pixels)",
        "y_label": "top-1 accuracy (%)",
        "title": "trained at 32²",
        "trained_on": ["32"],
    },
}
RATES = {"cape": (0.6, 0.8, 0.75), "sinpos": (0.5, 0.8, 0.4), "nopos": (0.4, 0.7, 0.55)}
RUN = "runs/cape-seed1-0abcd"


def write_run(folder: Path, variant: str, seed: int, images: int = 200, **settings) -> Path:
    """A run with items that make its scores."""
    run = folder / "runs" / f"{variant}-seed{seed}-{len(settings)}abcd"
    run.mkdir(parents=True)
    random = np.random.default_rng([seed, len(variant)])
    right = {c: random.random(images) < r for c, r in zip(SIZES, RATES[variant], strict=True)}
    scores, items = [], []
    for condition, hits in right.items():
        about = (folder.name, "timm", variant, seed, "sizes", condition, "top1")
        scores.append((*about, 100 * hits.mean(), True, condition == "32", images, "percent"))
        each = enumerate(hits)
        items += [(condition, "top1", "percent", f"{i}.png", int(hit), 1) for i, hit in each]
    columns = ["condition", "metric", "how", "item", "value", "weight"]
    pd.DataFrame(scores, columns=report_read.TIDY).to_csv(run / "scores.csv", index=False)
    pd.DataFrame(items, columns=columns).to_csv(run / "items-sizes.csv", index=False)
    about = {"study": folder.name, "variant": variant, "seed": seed, "host": "timm"}
    about |= {"options": {"epochs": 2, "log": "{seed}"}, **settings}
    (run / "settings.yaml").write_text(yaml.safe_dump(about))
    record = {
        "git_commit": "0123abc",
        "versions": {"torch": "2.14.1", "timm": "1.0.31"},
        "machine": {"host": "here", "cores": 2},
        "train": {"command": ["train.py", "--model", f"vit_{variant}"], "seconds": 61.5},
        "evaluate-sizes": {"command": ["cape-timm-eval", "-c", "a b"], "seconds": 2.5},
    }
    (run / "record.json").write_text(json.dumps(record))
    return run


def write_study(folder: Path, seeds=(0, 1, 2), **changes) -> Path:
    folder.mkdir(parents=True)
    runs = [write_run(folder, variant, seed).name for seed in seeds for variant in RATES]
    study = {**STUDY, "runs": runs, **changes}
    (folder / "study.yaml").write_text(yaml.safe_dump(study, allow_unicode=True, sort_keys=False))
    return folder


@pytest.fixture(autouse=True)
def figures(monkeypatch, request):
    """They take most of a report's time: what is drawn is kept, and no picture made of it."""
    if "page" in request.fixturenames:  # which has them
        return None
    made = []

    def keep(figure, out, **_):
        made.append(figure)
        out.write(b"PNG")

    monkeypatch.setattr(report_figures.Figure, "savefig", keep)
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three seeds of three variants."""
    return write_study(tmp_path / "small")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Of two studies, one of three seeds and one of one."""
    root = tmp_path_factory.mktemp("page")
    write_study(root / "small")
    write_study(root / "one", seeds=[0])
    report.main([str(root), "--out", str(root / "report")])
    return root / "report" / "index.html"


def scores_of(folder: Path) -> Scores:
    return Scores(report_read.studies([folder])[0], "sizes", "top1")


def reported(*arguments: object) -> str:
    """The tables of a report in the folder, or in --out."""
    report.main([*map(str, arguments)])
    out = arguments[-1] if "--out" in arguments else f"{arguments[0]}/report"
    return Path(out, "table.md").read_text()


def row(text: str, variant: str, table: int = 0) -> list[str]:
    """The cells of a variant in one of the tables."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {variant} ")]
    return [cell.strip() for cell in lines[table].split("|")[1:-1]]


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# --- intervals


def test_a_percentage_ends_at_0_and_100_and_a_difference_does_not(folder):
    for path in folder.glob("runs/*/scores.csv"):
        seed = int(path.parent.name.split("seed")[1][0])
        pd.read_csv(path).assign(value=[99.0, 97.0, 100.0][seed]).to_csv(path, index=False)
    without_items(folder)
    scores = scores_of(folder)
    found = scores.found["cape", "32"]
    assert (found.low, found.high) == pytest.approx((94.87, 100), abs=0.01)
    assert scores.differences["cape", "32"].high > 0


def test_trainings_are_pairs_of_a_seed_only_if_they_go_on_from_the_same_weights(folder):
    cape, sinpos = (scores_of(folder).values[v, "64"] for v in ("cape", "sinpos"))
    found = scores_of(folder).differences["cape", "64"]
    welch = stats.ttest_ind(cape, sinpos, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval()))
    assert "on the same test items, Welch's t." in reported(folder)
    variants = {"nopos": {}, "cape": {"after": "nopos"}, "sinpos": {"after": "nopos"}}
    write_about(folder, variants=variants)
    pairs = scores_of(folder).differences["cape", "64"]
    students = stats.ttest_rel(cape, sinpos)
    assert (pairs.low, pairs.high) == pytest.approx(tuple(students.confidence_interval()))
    assert "Student's t of pairs of a seed" in reported(folder)


def test_two_tests_of_the_same_trainings_are_compared_training_by_training(folder):
    scores = scores_of(folder)
    found = scores.difference("cape", "cape", "32", "64")
    pairs = stats.ttest_rel(scores.values["cape", "32"], scores.values["cape", "64"])
    assert (found.low, found.high) == pytest.approx(tuple(pairs.confidence_interval()))


def test_more_trainings_of_one_variant_count_all(folder, tmp_path):
    added = [write_run(folder, "cape", seed).name for seed in (3, 4, 5)]
    study = yaml.safe_load((folder / "study.yaml").read_text())
    write_about(folder, runs=[*study["runs"], *added], seeds=[*range(6)])
    assert row(reported(folder), "cape", 1)[1] == "6 and 3"
    scores = scores_of(folder)
    less = scores.differences["cape", "64"]
    assert less.value == pytest.approx(
        scores.values["cape", "64"].mean() - scores.values["sinpos", "64"].mean()
    )


def test_the_error_of_test_items_stands_beside_a_score_and_a_difference(folder):
    """Of images that are right or wrong, averaged over three trainings."""
    scores = scores_of(folder)
    right = {}
    for variant in ("cape", "sinpos"):
        items = [pd.read_csv(path) for path in folder.glob(f"runs/{variant}-*/items-sizes.csv")]
        items = pd.concat(items).query("condition == 64")
        right[variant] = 100 * items.groupby("item")["value"].mean()
    found, less = scores.found["cape", "64"], scores.differences["cape", "64"]
    assert found.items == pytest.approx(stats.sem(right["cape"]))
    assert less.items == pytest.approx(stats.sem(right["cape"] - right["sinpos"]))
    text = reported(folder)
    low, high = (f"{end:.2f}" for end in (found.low, found.high))
    assert row(text, "cape")[4] == f"{found.value:.2f} ± {found.items:.2f} [{low}, {high}]"
    assert f" ± {less.items:.2f} [" in row(text, "cape", 1)[4]
    assert "±: standard error of the choice of test items, no part of the interval." in text


def write_about(folder, **changes):
    study = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "study.yaml").write_text(yaml.safe_dump({**study, **changes}, sort_keys=False))


def without_items(folder):
    for path in folder.glob("runs/*/items-*.csv"):
        path.unlink()


def test_without_items_there_is_no_error_of_them(folder):
    without_items(folder)
    assert "±" not in reported(folder)


def test_of_items_that_are_not_the_same_a_difference_has_no_error(folder):
    for path in folder.glob("runs/cape-*/items-sizes.csv"):
        replace_in(path, "7.png", "x.png")
    text = reported(folder)
    assert "±" in row(text, "cape")[2]
    assert "±" not in row(text, "cape", 1)[2]
    assert "±" in row(text, "nopos", 1)[2]


def test_of_fewer_than_three_trainings_there_are_values_and_no_interval(tmp_path):
    two, one = write_study(tmp_path / "two", [0, 1]), write_study(tmp_path / "one", [0])
    text = reported(two)
    each = scores_of(two).values["cape", "64"]
    assert row(text, "cape")[4] == f"{sum(each) / 2:.2f} ({each[0]:.2f}, {each[1]:.2f})"
    assert "[" not in text
    assert "Parentheses: each training by seed, where there is no interval." in text
    assert row(reported(one), "cape")[4] == f"{each[0]:.2f}"


# --- missing scores


def lose(folder, value):
    """The score of cape, seed 1, at 64."""
    path = folder / RUN / "scores.csv"
    rows = pd.read_csv(path, dtype=str)
    if value is None:
        rows = rows[rows["condition"] != "64"]
    rows.loc[rows["condition"] == "64", "value"] = value
    rows.to_csv(path, index=False)


@pytest.mark.parametrize("value", ["", "nan", "inf", "diverged", None])
def test_a_training_without_a_score_is_seen_and_there_is_no_mean(folder, figures, value):
    lose(folder, value)
    text, scores = reported(folder), scores_of(folder)
    first, _, last = scores.values["cape", "64"]
    assert row(text, "cape")[-1] == f"† ({first:.2f}, –, {last:.2f})"
    assert row(text, "cape", 1)[-1] == "†"
    assert "† A training has no score there" in text
    assert scores.found["cape", "24"].known
    lines = {line.get_label(): line.get_ydata() for line in figures[0].axes[0].lines}
    assert np.isnan(lines["cape †"]).tolist() == [False, False, True]


def test_without_the_baselines_score_there_is_no_difference(folder):
    path = folder / RUN.replace("cape", "sinpos") / "scores.csv"
    pd.read_csv(path).assign(value=math.nan).to_csv(path, index=False)
    text = reported(folder)
    assert all("†" in cell for cell in row(text, "nopos", 1)[3:])


# --- what is written


def test_the_table_has_intervals_bold_and_arrows(folder):
    scores, text = scores_of(folder), reported(folder)
    found = scores.found["cape", "32"]
    assert row(text, "cape")[3].startswith(f"**{found.value:.2f} ± ")
    assert row(text, "cape")[3].endswith(f" [{found.low:.2f}, {found.high:.2f}]**")
    assert "**" not in row(text, "cape")[2] + row(text, "cape")[4]
    assert "### sizes, top1 ↑\n" in text


def test_chance_is_a_row_of_the_scores_and_an_answer_has_no_table_of_single_pairs(folder):
    answer = {"data": "images", "within": "at 32", "beyond": {}, "chance": 10.0}
    model = {"model": "vit", "img-size": 32, "model-kwargs": {}, "pretrained": False}
    write_about(folder, answer=answer, options=model)
    text = reported(folder)
    assert row(text, "always the commonest class") == [
        "always the commonest class", "", "10.00", "10.00", "10.00"
    ]  # fmt: skip
    assert "difference from sinpos" not in text
    assert "for all pairs of a range together" in text


def test_more_than_fifty_conditions_have_no_table(folder):
    without_items(folder)
    for path in folder.glob("runs/*/scores.csv"):
        rows = pd.read_csv(path)
        more = [rows.assign(condition=rows["condition"] + 100 * i) for i in range(20)]
        pd.concat(more).to_csv(path, index=False)
    assert "60 conditions: see the figure and scores.csv." in reported(folder)


def test_the_figure_has_the_values_at_conditions_that_are_numbers(folder, figures):
    """A shift in pixels, in the order of the tests."""
    for path in folder.glob("runs/*/*.csv"):
        rows = pd.read_csv(path, dtype=str)
        rows["condition"] = rows["condition"].replace({"24": "10", "32": "0", "64": "2"})
        rows.to_csv(path, index=False)
    reported(folder)
    (axis,), found = figures[0].axes, scores_of(folder).found
    lines = {line.get_label(): line.get_xydata() for line in axis.lines}
    assert lines["nopos"].tolist() == [[i, found["nopos", str(i)].value] for i in (0, 2, 10)]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["10", "0", "2"]
    assert (figures[0].get_suptitle(), axis.get_xlabel()) == (
        "trained at 32²",
        "image side (pixels)",
    )
    bands = [one.get_paths()[0].vertices for one in axis.collections if "Fill" in repr(one)]
    assert len(bands) == 3
    low = {at: bands[0][bands[0][:, 0] == at, 1].min() for at in (0, 2, 10)}
    assert low == pytest.approx({at: found["cape", str(at)].low for at in (0, 2, 10)})


def test_no_two_of_forty_variants_are_drawn_alike():
    assert len({tuple(report_figures.of_variant(index).items()) for index in range(40)}) == 40


def test_another_variant_may_be_the_baseline(folder):
    text = reported(folder, "--baseline", "cape")
    assert "difference from cape" in text
    assert "difference from sinpos" not in text


def test_a_report_of_the_stored_scores_and_items_is_the_same(folder, monkeypatch, tmp_path):
    write_study(tmp_path / "other", seeds=[5])
    text = reported(tmp_path, "--out", tmp_path / "out")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"figure-small.png", "figure-other.png"}
    scores = {"scores.csv", "scores-items.csv.xz"}
    assert files == {*scores, "table.md", "index.html", *pictures}
    monkeypatch.setattr(report_read, "find", lambda name: tmp_path / name / "study.yaml")
    for name in scores:
        shutil.copy(tmp_path / "out" / name, tmp_path / name.replace("scores", "kept"))
    again = reported(tmp_path / "kept.csv", "--out", tmp_path / "again")
    note = "kept.csv: single test items are not stored, so that intervals are for other trainings "
    note += "on the same items.\n\n"
    assert again.replace(note, "") == text  # of one training none are kept
    (tmp_path / "kept-items.csv.xz").unlink()
    alone = reported(tmp_path / "kept.csv", "--out", tmp_path / "alone")
    assert alone.count("kept.csv: single test items are not stored") == 2
    assert "±" not in alone


def test_what_a_reader_should_know_of_the_runs_is_noted(tmp_path, figures):
    folder = write_study(tmp_path / "small", host="fairseq")
    (folder / "runs/cape-seed0-0abcd/scores.csv").unlink()
    (folder / "runs/cape-seed0-0abcd/failed").write_text("exit status 1, the loss is NaN")
    write_run(folder, "cape", 3, learning_rate=2)
    replace_in(folder / RUN / "record.json", '"seconds": 61.5', '"seconds": 1, "interrupted": 2')
    text = reported(folder)
    assert "Not finished: cape-seed0-0abcd (failed: exit status 1, the loss is NaN)." in text
    first = text.splitlines()[2]
    assert first.startswith("This shows the 9 trainings that the last call asked for. The folder")
    assert "Of other settings, or of variants that the last call left out: cape-seed3-1" in first
    assert "went on from a checkpoint: cape-seed1-0abcd (2 times)." in text
    assert "fairseq's batches come in another order after that" in text
    assert row(text, "cape")[1] == "3"
    assert row(text, "cape")[-1].startswith("† (–, ")  # it may have diverged: no mean without it
    stored = report_read.read(folder / "report" / "scores.csv")
    assert stored[stored["value"].isna()]["seed"].unique().tolist() == [0]  # nor when it is stored


def test_of_trainings_that_are_not_done_there_is_the_mean_of_the_others_with_their_number(tmp_path):
    folder = write_study(tmp_path / "small", call="cape-run small --seeds 0 1 2")
    for seed in (1, 2):
        (folder / f"runs/cape-seed{seed}-0abcd/scores.csv").unlink()
    (folder / "runs/sinpos-seed0-0abcd/scores.csv").unlink()
    text, scores = reported(folder), scores_of(folder)
    assert row(text, "cape")[1] == "1 of 3"
    assert row(text, "sinpos")[1] == "2 of 3"
    one = scores.found["sinpos", "64"]
    assert row(text, "sinpos")[-1].startswith(f"{one.value:.2f} (")
    assert "cape-seed1-0abcd (waiting)" in text
    assert "cape-run small --seeds 0 1 2 goes on" in text
    apart = scores.differences["cape", "64"]  # they have no seed in common
    assert apart.value == pytest.approx(scores.found["cape", "64"].value - one.value)


def test_where_only_others_have_scores_the_refusal_says_so_and_what_to_type(tmp_path, capsys):
    folder = write_study(tmp_path / "small", seeds=[0])
    names = [path.name for path in folder.glob("runs/*")]
    write_about(folder, runs=["cape-seed5-0abcd"], others=names, call="cape-run small --seeds 5")
    line = refused(report.main, capsys, folder)
    assert "small has no scores yet: cape-run small --seeds 5 makes them" in line
    assert "The last call asked for 1 training: cape-seed5-0abcd (waiting)" in line
    assert "Not asked for by the last call: " in line


def test_a_quick_run_looks_like_one(tmp_path, figures):
    text = reported(write_study(tmp_path / "small", quick_run=True))
    assert text.startswith("## QUICK RUN: A small study")
    assert "its numbers say nothing." in text
    assert figures[0].get_suptitle() == "QUICK RUN: trained at 32²"


def test_a_report_is_made_anew_and_other_files_are_not_replaced(folder, tmp_path, capsys):
    reported(folder)
    reported(folder)
    (tmp_path / "table.md").write_text("mine")
    line = refused(report.main, capsys, folder, "--out", tmp_path)
    assert f"{tmp_path}/table.md exists: choose another --out or give --overwrite" in line
    assert (tmp_path / "table.md").read_text() == "mine"
    assert not (tmp_path / "index.html").exists()
    assert "sizes, top1" in reported(folder, "--overwrite", "--out", tmp_path)


# --- refusals


def unwritten(folder):
    for path in folder.glob("runs/*/scores.csv"):
        path.unlink()


def twice(folder):
    """A run of cape, seed 0, that the study lists as its own, beside the one that is there."""
    replace_in(folder / "study.yaml", "runs:\n", "runs:\n- cape-seed0-other\n")
    made = write_run(folder.parent / "elsewhere" / "small", "cape", 0)
    shutil.move(made, folder / "runs" / "cape-seed0-other")


def another(folder):
    write_study(folder.parent / "deeper" / "small", seeds=[0])


def with_(name, old, new):
    return lambda folder: replace_in(folder / name, old, new)


def holding(name, text):
    return lambda folder: (folder / name).write_bytes(text)


ITEMS, SCORES = f"{RUN}/items-sizes.csv", f"{RUN}/scores.csv"
CUT = "24,top1,percent,7.png,1,1"
REFUSED = [
    (None, "no", "no such file or folder: {}/no"),
    (lambda folder: Path("empty").mkdir(), "empty", "empty was not written by cape-run: there"),
    (unwritten, "small", "small has no scores yet: cape-run small makes"),
    (None, "small --baseline rope", "--baseline: no 'rope'; there is cape, nopos, sinpos"),
    (twice, "small", "small: sizes has several top1 of cape 24 0"),
    (with_(SCORES, ",sizes,24,", ",sizes,32,"), "small", "sizes has several top1 of cape 32 1"),
    (with_(SCORES, "higher_is_better", "better"), "small", f"{SCORES}: no 'higher_is_better'"),
    (holding(SCORES, b""), "small", f"small/{SCORES} cannot be read: No columns"),
    (with_(ITEMS, CUT, "24,top"), "small", f"{ITEMS}: how is nan, not one of percent, mean"),
    (with_(ITEMS, CUT, CUT[:-1]), "small", f"{ITEMS}: item 7.png of '24' lacks a number"),
    (with_(ITEMS, ",7.png,", ",7.png,no"), "small", f"{ITEMS}: item 7.png of '24' lacks"),
    (with_(ITEMS, "item", "image"), "small", f"{ITEMS}: no 'item'; there is condition"),
    (holding(ITEMS, b"\xff\xfe"), "small", f"{ITEMS} cannot be read"),
    (with_(ITEMS, "percent", "promille"), "small", f"{ITEMS}: how is 'promille', not one of"),
    (holding(f"{RUN}/record.json", b'{"a'), "small", "record.json cannot be read: while"),
    (holding(f"{RUN}/record.json", b"[]"), "small", "record.json must be a mapping"),
    (holding(f"{RUN}/settings.yaml", b"a: ["), "small", "settings.yaml cannot be read: while"),
    (holding("study.yaml", b"a: [\n"), "small", "small/study.yaml cannot be read: while"),
    (holding("study.yaml", b"title: x\n"), "small", "small/study.yaml: host: Field required"),
    (another, "small deeper/small", "--out DIR is needed for more than one folder"),
    (another, "small deeper/small --out o", "2 studies 'small': report them apart"),
    (None, "small small --out o", "--source: the list has small twice"),
    (None, "small --out small/study.yaml", "small/study.yaml cannot be written"),
]


@pytest.mark.parametrize(("spoil", "arguments", "message"), REFUSED)
def test_what_is_no_study_of_cape_run_is_refused(
    folder, monkeypatch, capsys, spoil, arguments, message
):
    monkeypatch.chdir(folder.parent)
    if spoil:
        spoil(folder)
    assert message.format(folder.parent) in refused(report.main, capsys, *arguments.split())
    assert not (folder / "report").exists()


def test_items_that_do_not_make_the_score_are_refused(folder, capsys):
    for path in folder.glob("runs/cape-*/items-sizes.csv"):
        pd.read_csv(path).query("item != '0.png' and item != '1.png'").to_csv(path, index=False)
    line = refused(report.main, capsys, folder)
    assert "small: cape 0 sizes 24 top1 is 60.5, its items make 60.6061" in line


# --- the page


def test_the_page_stands_alone_and_has_it_all(page):
    text = page.read_text()
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    sources = [part.split('"')[1] for part in text.split(" src")[1:]]
    assert len(sources) == 2
    assert all(one.startswith("data:image/png;base64,iVBOR") for one in sources)
    for part in (
        "A small study &lt;of positions&gt; &amp; sizes",
        "Expected: cape flatter beyond the trained size.",
        "sizes, top1 ↑, difference from sinpos",
        "for other trainings on the same test items,",
        "torch: 2.14.1",
        "train.py --model vit_cape",
        "cape-timm-eval -c &#39;a b&#39;",
        "epochs: 2",
    ):
        assert part in text, part
    assert text.count("<td><strong>") == 2 * (3 + 2)  # the column 32 of scores and of differences
