"""What cape-report makes of scores and items, stored here as an earlier report leaves them."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from cape_studies import figure, report, results
from cape_studies.compare import Scores
from cape_studies.config import load
from cape_studies.scores import TIDY
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
TEXT = dict.fromkeys(["condition", "item"], str)


def rows_of(name: str, variant: str, seed: int, images: int = 200):
    """Scores of a training, and the items that make them."""
    random = np.random.default_rng([seed, len(variant)])
    right = {c: random.random(images) < r for c, r in zip(SIZES, RATES[variant], strict=True)}
    scores, items = [], []
    for at, hits in right.items():
        about = (name, "timm", variant, seed, "sizes", at, "top1")
        scores.append((*about, 100 * hits.mean(), True, at == "32", images, "percent"))
        each = enumerate(hits)
        items += [(at, "top1", "percent", f"{i}.png", int(hit), 1) for i, hit in each]
    columns = ["condition", "metric", "how", "item", "value", "weight"]
    own = pd.DataFrame(items, columns=columns).assign(variant=variant, seed=seed, study=name)
    return pd.DataFrame(scores, columns=TIDY), own.assign(evaluation="sizes")


def write_study(folder: Path, seeds=(0, 1, 2), more=(), **changes) -> Path:
    """A study, its scores and its items; ``more`` are seeds of cape alone."""
    folder.mkdir(parents=True)
    each = [(variant, seed) for seed in seeds for variant in RATES]
    each += [("cape", seed) for seed in more]
    scores, items = zip(*(rows_of(folder.name, *one) for one in each), strict=True)
    pd.concat(scores).to_csv(folder / "scores.csv", index=False)
    if len(seeds) > 2:
        pd.concat(items).to_csv(folder / "scores-items.csv.xz", index=False)
    write_about(folder, **changes)
    return folder


def change(path: Path, how) -> None:
    """Replace a CSV by what a function makes of its rows."""
    how(pd.read_csv(path, dtype=TEXT)).to_csv(path, index=False)


@pytest.fixture(autouse=True)
def figures(monkeypatch, request):
    """They take most of a report's time: what is drawn is kept, and no picture made of it."""
    if "page" in request.fixturenames:  # which has them
        return None
    made = []

    def keep(drawn, out, **_):
        made.append(drawn)
        out.write(b"PNG")

    monkeypatch.setattr(figure.Figure, "savefig", keep)
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three seeds of three variants."""
    return write_study(tmp_path / "small")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("page")
    write_study(root / "small")
    report.main([str(root / "small" / "scores.csv"), "--write", str(root / "report")])
    return root / "report" / "index.html"


def scores_of(folder: Path) -> Scores:
    (one,) = results.stored(folder / "scores.csv")
    return Scores(one, "sizes", "top1")


def reported(folder: Path, *words: str) -> str:
    """The tables of a report."""
    report.main([str(folder / "scores.csv"), "--write", str(folder / "report"), *words])
    return (folder / "report" / "table.md").read_text()


def row(text: str, variant: str, table: int = 0) -> list[str]:
    """The cells of a variant in one of the tables."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {variant} ")]
    return [cell.strip() for cell in lines[table].split("|")[1:-1]]


# --- intervals


def test_a_percentage_ends_at_0_and_100_and_a_difference_does_not(folder):
    values = {0: 99.0, 1: 97.0, 2: 100.0}
    change(folder / "scores.csv", lambda rows: rows.assign(value=rows["seed"].map(values)))
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


def test_more_trainings_of_one_variant_count_all(tmp_path):
    folder = write_study(tmp_path / "small", more=(3, 4, 5))
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
    items = pd.read_csv(folder / "scores-items.csv.xz", dtype=TEXT).query("condition == '64'")
    for variant in ("cape", "sinpos"):
        mine = items[items["variant"] == variant]
        right[variant] = 100 * mine.groupby("item")["value"].mean()
    found, less = scores.found["cape", "64"], scores.differences["cape", "64"]
    assert found.items == pytest.approx(stats.sem(right["cape"]))
    assert less.items == pytest.approx(stats.sem(right["cape"] - right["sinpos"]))
    text = reported(folder)
    low, high = (f"{end:.2f}" for end in (found.low, found.high))
    assert row(text, "cape")[4] == f"{found.value:.2f} ± {found.items:.2f} [{low}, {high}]"
    assert f" ± {less.items:.2f} [" in row(text, "cape", 1)[4]
    assert "±: standard error of the choice of test items, no part of the interval." in text


def write_about(folder, **changes):
    path = folder / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))


def without_items(folder):
    (folder / "scores-items.csv.xz").unlink()


def test_without_items_there_is_no_error_of_them(folder):
    without_items(folder)
    assert "±" not in reported(folder)


def test_of_items_that_are_not_the_same_a_difference_has_no_error(folder):
    def renamed(rows):
        mine = (rows["variant"] == "cape") & (rows["item"] == "7.png")
        return rows.assign(item=rows["item"].mask(mine, "x.png"))

    change(folder / "scores-items.csv.xz", renamed)
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


def lose(folder, value, variant="cape"):
    """The score of a variant, seed 1, at 64."""
    rows = pd.read_csv(folder / "scores.csv", dtype=str)
    at = (rows["variant"] == variant) & (rows["seed"] == "1") & (rows["condition"] == "64")
    rows.loc[at, "value"] = value
    (rows[~at] if value is None else rows).to_csv(folder / "scores.csv", index=False)


@pytest.mark.parametrize("value", ["", "nan", "inf", None])
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
    lose(folder, "", "sinpos")
    assert row(reported(folder), "nopos", 1)[-1] == "†"


# --- what is written


def test_the_table_has_intervals_bold_and_arrows(folder):
    scores, text = scores_of(folder), reported(folder)
    found = scores.found["cape", "32"]
    assert row(text, "cape")[3].startswith(f"**{found.value:.2f} ± ")
    assert row(text, "cape")[3].endswith(f" [{found.low:.2f}, {found.high:.2f}]**")
    assert "**" not in row(text, "cape")[2] + row(text, "cape")[4]
    assert "### sizes, top1 ↑\n" in text


def test_chance_is_a_row_of_the_scores_and_an_answer_has_no_table_of_single_pairs(folder):
    answer = {"within": "at 32", "beyond": {}, "chance": 10.0}
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

    def many(rows):
        return pd.concat([rows.assign(condition=rows["condition"] + f"{i}") for i in range(20)])

    change(folder / "scores.csv", many)
    assert "60 conditions: see the figure and scores.csv." in reported(folder)


def test_the_figure_has_the_values_at_conditions_that_are_numbers(folder, figures):
    """A shift in pixels, in the order of the tests."""
    names = {"24": "10", "32": "0", "64": "2"}
    for name in ("scores.csv", "scores-items.csv.xz"):
        change(folder / name, lambda rows: rows.assign(condition=rows["condition"].replace(names)))
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


def test_the_figure_has_a_score_against_another_metric_with_the_condition_at_each_point(
    folder, figures
):
    without_items(folder)
    speed = {"24": 400, "32": 225, "64": 56}

    def faster(rows):
        place = {"metric": "throughput", "how": "number"}
        return pd.concat([rows, rows.assign(value=rows["condition"].map(speed), **place)])

    change(folder / "scores.csv", faster)
    metrics = {"top1": "higher", "throughput": "higher"}
    evaluations = {"sizes": {"metrics": metrics}}
    write_about(folder, evaluations=evaluations, report={**STUDY["report"], "x": "throughput"})
    reported(folder)
    (axis,), found = figures[0].axes, scores_of(folder).found
    lines = {line.get_label(): line.get_xydata().tolist() for line in axis.lines}
    assert lines.keys() == {"cape", "sinpos", "nopos"}
    expected = [[speed[at], found["cape", at].value] for at in ("64", "32", "24")]
    assert lines["cape"] == expected
    beside = {(one.get_text(), one.xy) for one in axis.texts}
    assert {(at, (speed[at], found["nopos", at].value)) for at in speed} < beside


def test_x_is_a_metric_of_the_evaluation_that_is_drawn(tmp_path):
    study = tmp_path / "one.yaml"
    study.write_text(yaml.safe_dump({**STUDY, "report": {"x": "speed"}}))
    with pytest.raises(ValueError, match=r"report\.x: no 'speed'"):
        load(study)


def test_no_two_of_forty_variants_are_drawn_alike():
    assert len({tuple(figure.of_variant(index).items()) for index in range(40)}) == 40


def test_stored_scores_without_items_say_so(folder):
    without_items(folder)
    assert "scores.csv: single test items are not stored" in reported(folder)


def test_a_report_replaces_an_earlier_one_with_all_its_files(folder):
    reported(folder)
    (folder / "report" / "answer.json").write_text("{}")  # of another study
    (folder / "report" / "figure-other.png").write_text("")
    (folder / "report" / "mine.txt").write_text("")
    reported(folder)
    files = {path.name for path in (folder / "report").iterdir()}
    assert files == {
        *("scores.csv", "scores-items.csv.xz", "table.md", "index.html", "figure.png", "mine.txt"),
    }


# --- refusals


def of_item(column, value):
    def spoil(rows):
        rows[column] = rows[column].astype(object)
        rows.loc[7, column] = value
        return rows

    return "scores-items.csv.xz", spoil


REFUSED = [
    (("scores.csv", lambda rows: pd.concat([rows, rows[:1]])), "sizes has several top1 of"),
    (("scores.csv", lambda rows: rows.drop(columns="how")), "scores.csv: no 'how'"),
    (("scores-items.csv.xz", lambda rows: rows.drop(columns="item")), "no 'item'; there is"),
    (of_item("how", "promille"), "scores-items.csv.xz: no 'promille'; there is bleu, "),
    (of_item("weight", math.nan), "its items make nan"),
    (of_item("value", "no"), "its items make nan"),
    (("scores-items.csv.xz", lambda rows: rows[2:]), "its items make"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED)
def test_scores_that_do_not_fit_are_refused(folder, capsys, spoil, message):
    name, how = spoil
    change(folder / name, how)
    words = folder / "scores.csv", "--write", folder / "report"
    assert message in refused(report.main, capsys, *words)
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.csv", "--write", "o"], "no.csv cannot be read"),
        (["small/scores.csv"], "--write DIR is needed"),
        (["small/scores.csv", "seeds=[1]", "--write", "o"], "seeds=[1]"),
        (["small/scores.csv", "--write", "small/small.yaml"], "small/small.yaml cannot be written"),
        ([], "which study?"),
    ],
)
def test_words_that_do_not_fit_are_refused(folder, monkeypatch, capsys, words, message):
    monkeypatch.chdir(folder.parent)
    assert message in refused(report.main, capsys, *words)


# --- the page


def test_the_page_stands_alone_and_has_it_all(page):
    text = page.read_text()
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    sources = [part.split('"')[1] for part in text.split(" src")[1:]]
    assert len(sources) == 1
    assert all(one.startswith("data:image/png;base64,iVBOR") for one in sources)
    for part in (
        "A small study &lt;of positions&gt; &amp; sizes",
        "Expected: cape flatter beyond the trained size.",
        "sizes, top1 ↑, difference from sinpos",
        "epochs: 2",
    ):
        assert part in text, part
    assert text.count("<td><strong>") == 3 + 2  # the column 32 of scores and of differences
