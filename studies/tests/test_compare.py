"""``cape-compare``: tables of scores that were made without our engine."""

import ast
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cape_studies import compare_csv

HAND = """variant,seed,condition,metric,value
rope,0,32,accuracy,71.2
rope,1,32,accuracy,71.9
rope,2,32,accuracy,71.6
nopos,0,32,accuracy,66.0
nopos,1,32,accuracy,66.9
nopos,2,32,accuracy,66.3
"""
PACKAGE = Path(compare_csv.__file__).parent
HIGHER = "--higher-is-better", "accuracy"


@pytest.fixture
def compared(tmp_path, capsys, monkeypatch):
    """Writes the tables and compares them; gives what was printed and the answer."""
    monkeypatch.chdir(tmp_path)

    def call(scores, *words, items=None):
        files = []
        for name, table in (("scores.csv", scores), ("items.csv", items)):
            if table is not None:
                text = table if isinstance(table, str) else table.to_csv(index=False)
                (tmp_path / name).write_text(text)
                files.append(name)
        compare_csv.main([*files, *words])
        answer = json.loads((tmp_path / "scores-report" / "answer.json").read_text())
        return capsys.readouterr().out, answer

    return call


@pytest.fixture
def refused(compared, capsys):
    """The one line that is said of tables that cannot be compared."""

    def call(*given, **items):
        with pytest.raises(SystemExit) as end:
            compared(*given, **items)
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return call


def trained(values, **more):
    """A row for each score of each variant, seed by seed."""
    rows = [(name, seed, of) for name, each in values.items() for seed, of in enumerate(each)]
    about = {"condition": "test", "metric": "accuracy", **more}
    return pd.DataFrame(rows, columns=["variant", "seed", "value"]).assign(**about)


def single(groups=0):
    """(variant, seed, item) of 60 items that are right or wrong, and the scores that they make."""
    random = np.random.default_rng(0)
    rows = []
    for variant, right in (("rope", 0.9), ("nopos", 0.5), ("cape", 0.8)):
        mine = random.random(60) < right
        for seed in range(3):
            hits = mine ^ (random.random(60) < 0.05 * (seed + 1))
            rows += [(variant, seed, f"{i}.wav", int(hit)) for i, hit in enumerate(hits)]
    items = pd.DataFrame(rows, columns=["variant", "seed", "item", "value"])
    items = items.assign(condition="test", metric="accuracy")
    if groups:
        items["group"] = "speaker " + (items["item"].str[:-4].astype(int) % groups).astype(str)
    names = ["variant", "seed", "condition", "metric"]
    return items.groupby(names, sort=False)["value"].mean().reset_index(), items


def test_what_compares_imports_nothing_of_what_trains():
    found, todo = set(), ["compare_csv"]
    for name in todo:  # todo grows
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        for node in ast.walk(tree):
            module = getattr(node, "module", None)
            if isinstance(node, ast.ImportFrom) and str(module).startswith("cape_studies"):
                own = module.split(".")[1:] or [one.name for one in node.names]
                todo += {*own} - found
                found |= {*own}
    assert found >= {"page", "answer", "compare", "stats", "figure", "tables", "tidy"}
    assert not found & {"plan", "run", "work", "process", "config", "hosts", "yamls", "results"}
    assert not found & {"report", "evaluate", "scores", "asked", "needs"}


# --- answers


def test_a_table_by_hand_gets_welchs_interval_and_a_page(compared, tmp_path):
    said, answer = compared(HAND, *HIGHER)
    of = answer["ranges"]["condition 32"]
    assert (of["best"], of["worse_on_these_items"]) == ("rope", ["nopos"])
    welch = stats.ttest_ind([66.0, 66.9, 66.3], [71.2, 71.9, 71.6], equal_var=False)
    ends = welch.confidence_interval(0.95)
    found = of["differences"]["nopos"]
    assert (found["low"], found["high"]) == pytest.approx((ends.low, ends.high))
    assert "Condition 32: rope has the best mean, accuracy 71.6." in said
    assert "nopos 66.4 (−5.2 [−6.1, −4.2])" in said
    made = {path.name for path in (tmp_path / "scores-report").iterdir()}
    assert made >= {"index.html", "figure.png", "table.md", "answer.json", "scores.csv"}


@pytest.mark.parametrize("groups", [0, 12])
def test_with_items_the_answer_is_for_other_items_or_groups_of_them(compared, groups):
    scores, items = single(groups)
    _, answer = compared(scores, *HIGHER, items=items)
    of = answer["ranges"]["condition test"]
    assert of["worse"] == ["nopos"]
    assert (of["items"], of["groups"]) == (60, groups or None)
    means = items.groupby(["variant", "group" if groups else "item"])["value"].mean().unstack()
    each = {name: rows["value"].to_numpy() for name, rows in scores.groupby("variant")}
    parts = np.array([stats.sem(each[one]) ** 2 for one in ("nopos", "rope")])
    error2 = stats.sem(means.loc["nopos"] - means.loc["rope"]) ** 2
    total, units = parts.sum() + error2, groups or 60
    free = total**2 / ((parts**2 / 2).sum() + error2**2 / (units - 1))
    level = (1 + 0.95 ** (1 / 3)) / 2
    reach = stats.t.ppf(level, min(free, units - 1)) * total**0.5
    found = of["differences"]["nopos"]
    assert found["high"] - found["value"] == pytest.approx(reach)


def test_an_item_of_two_conditions_is_one_item_and_truth_may_be_a_number(compared):
    scores, items = (pd.concat([of, of.assign(condition="other")]) for of in single())
    _, answer = compared(scores.assign(trained_on=1.0), *HIGHER, items=items)
    assert answer["ranges"]["in conditions of training"]["items"] == 60


def test_items_near_the_limit_of_a_part_of_one_are_not_compared(compared):
    rows = []
    for variant, wrong in (("a", 0), ("b", 4)):
        for seed in range(3):
            rows += [(variant, seed, i, int(i >= wrong + (seed == 1))) for i in range(100)]
    items = pd.DataFrame(rows, columns=["variant", "seed", "item", "value"])
    items = items.assign(condition="test", metric="accuracy")
    scores = items.drop(columns="item").groupby(["variant", "seed", "condition", "metric"]).mean()
    _, answer = compared(scores.reset_index(), *HIGHER, items=items)
    assert answer["ranges"]["condition test"]["too_near_the_limit"] == ["b"]


def test_conditions_of_training_are_one_range_and_the_others_another(compared):
    each = [trained({"a": [1, 2, 3], "b": [4, 5, 7]}, condition=c) for c in ("8", "16", "32")]
    table = pd.concat(each)
    table["trained_on"] = table["condition"] == "8"
    _, answer = compared(table, "--lower-is-better", "accuracy")
    ranges = answer["ranges"]
    assert [*ranges] == ["in conditions of training", "in other conditions than training's"]
    assert all(of["best"] == "a" for of in ranges.values())


def test_each_evaluation_and_condition_is_answered_by_its_name(compared, tmp_path):
    each = [trained({"a": [1, 2, 3], "b": [4, 5, 7]}, evaluation=e) for e in ("greedy", "beam")]
    _, answer = compared(pd.concat(each), *HIGHER)
    assert [*answer["ranges"]] == ["greedy, condition test", "beam, condition test"]
    compared(HAND, *HIGHER)
    assert "### accuracy ↑\n" in (tmp_path / "scores-report" / "table.md").read_text()


def test_the_baseline_is_what_others_must_beat_and_has_a_table(compared, tmp_path):
    said, _ = compared(HAND, *HIGHER, "--baseline", "rope")
    assert "better than rope, and worse than it are nopos" in said
    table = (tmp_path / "scores-report" / "table.md").read_text()
    assert "difference from rope" in table
    compared(HAND, *HIGHER)
    assert "difference from rope" not in (tmp_path / "scores-report" / "table.md").read_text()


def test_a_metric_alone_needs_the_direction_of_that_alone(compared):
    table = pd.concat([trained({"a": [1, 2, 3], "b": [4, 5, 7]}, metric=m) for m in ("f1", "loss")])
    said, answer = compared(table, "--metric", "loss", "--lower-is-better", "loss")
    assert answer["metric"] == "loss"
    assert "a has the best mean" in said


def test_a_column_says_the_direction_too_and_columns_that_are_not_used_are_named(compared):
    table = trained({"a": [1, 2, 3], "b": [4, 5, 7]}, higher_is_better=False, notes="x")
    said, answer = compared(table)
    assert answer["ranges"]["condition test"]["best"] == "a"
    assert "Not used: the columns notes of scores.csv." in said


@pytest.mark.parametrize("value", ["", "nan", "NaN"])
def test_a_training_without_a_score_leaves_its_variant_out(compared, value):
    said, _ = compared(HAND.replace("66.9", value), *HIGHER)
    assert "Left out, as a training has no score: nopos." in said


def test_a_variant_that_was_not_tested_in_a_condition_is_left_out_there_alone(compared):
    more = "".join(f"{v},{s},64,accuracy,5{s}\n" for v in ("rope", "cape") for s in range(3))
    _, answer = compared(HAND + more, *HIGHER)
    assert answer["ranges"]["condition 64"]["lacking"] == ["nopos"]
    assert answer["ranges"]["condition 32"]["lacking"] == ["cape"]


# --- refusals


@pytest.mark.parametrize(
    ("table", "words", "named"),
    [
        (HAND.replace("seed", "run"), HIGHER, "'seed'"),
        (HAND + "rope,2,32,accuracy,71.6\n", HIGHER, "two rows of variant rope, seed 2"),
        (HAND.replace("71.9", "diverged"), HIGHER, "row 3: value is 'diverged'"),
        (HAND.replace("rope,1", ",1"), HIGHER, "row 3 has no variant"),
        (HAND.replace("nopos", "rope").replace("rope,", "rope,1", 3), HIGHER, "one variant, rope"),
        (HAND.partition("\n")[0] + "\n", HIGHER, "no rows"),
        (HAND, (), "--lower-is-better accuracy"),
        (HAND, (*HIGHER, "--lower-is-better", "accuracy"), "--lower-is-better accuracy"),
        (HAND, ("--higher-is-better", "acc"), "'acc'; there is accuracy"),
        (HAND, (*HIGHER, "--baseline", "alibi"), "--baseline: no 'alibi'; there is nopos, rope"),
        (HAND, (*HIGHER, "--metric", "f1"), "--metric: no 'f1'"),
        (HAND, (*HIGHER, "--out", "."), "--out"),
        (HAND.replace("value\n", "value,trained_on\n").replace(".", ".0,yes"), HIGHER, "got"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(refused, table, words, named):
    assert named in refused(table, *words)


def test_a_direction_that_differs_within_a_metric_is_refused(refused):
    table = trained({"a": [1, 2, 3], "b": [4, 5, 7]})
    table["higher_is_better"] = table["variant"] == "a"
    assert "both True and False" in refused(table)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda of: of.drop(columns="item"), "'item'"),
        (lambda of: of.drop(columns="value"), "'value'"),
        (lambda of: pd.concat([of, of[:1]]), "two rows of variant rope, seed 0"),
        (lambda of: of.assign(seed=of["seed"] + 7), "rope, 7, test, accuracy"),
        (lambda of: of.assign(weight=np.where(of.index == 4, np.nan, 1)), "row 6 has no weight"),
        (lambda of: of[1:], "its items make"),
        (lambda of: of.assign(how="median"), "'median'"),
    ],
)
def test_items_that_do_not_fit_are_refused_in_one_line(refused, change, named):
    scores, items = single()
    assert named in refused(scores, *HIGHER, items=change(items))
