"""Tidy scores of what the evaluations write."""

import math

import pytest

from cape_studies import scores
from cape_studies.config import Evaluation


def tidy(tmp_path, host, text, **about):
    path = tmp_path / "x.csv"
    path.write_text(text)
    metrics = about.pop("metrics", {"top1": "higher"})
    one = Evaluation.model_validate({"metrics": metrics, **about}, context=[tmp_path])
    return [(r["condition"], r["value"], r["items"]) for r in scores.tidy(one, host, path)]


def csv(columns, *rows):
    return "\n".join([f"model,{columns},metric,value,how,items,weight", *rows])


def test_several_columns_name_a_condition(tmp_path):
    rows = (
        f"m,24,{extent},top1,{value},percent,9,9" for extent, value in [("1", 50), ("sqrt", 51)]
    )
    text = csv("resolution,extent", *rows)
    found = tidy(tmp_path, "timm", text, condition=["resolution", "extent"])
    assert found == [("24 1", 50.0, 9), ("24 sqrt", 51.0, 9)]


LOSSES = csv(
    "position", *(f"m,{p},loss,{v},mean,{n},{n}" for p, v, n in
                  [(1, 2.0, 3), (2, 4.0, 1), (3, 6.0, 1), (9, 1.0, 1)])
)  # fmt: skip


def test_losses_by_position_become_ranges_weighed_by_tokens(tmp_path):
    about = {"command": "loss", "condition": ["position"], "metrics": {"loss": "lower"}}
    ranges = tidy(tmp_path, "fairseq", LOSSES, ranges=[2, 4], **about)
    assert ranges == [("1–2", 2.5, 4), ("3–4", 6.0, 1)]
    whole = tidy(tmp_path, "fairseq", LOSSES, name="all of it", **{**about, "condition": []})
    assert whole == [("all of it", 17 / 6, 6)]


def test_what_cannot_be_averaged_is_refused(tmp_path):
    about = {"command": "loss", "metrics": {"loss": "lower"}}
    with pytest.raises(ValueError, match=r"4 values of loss .* cannot be averaged \(bleu\)"):
        tidy(tmp_path, "fairseq", LOSSES.replace("mean", "bleu"), **about)


def test_word_errors_of_whole_sets_unless_bins_are_asked_for(tmp_path):
    text = csv("test_set,bin", "m,dev,all,wer,9,percent,5,50", "m,dev,<10,wer,8,percent,3,30")
    about = {"metrics": {"wer": "lower"}}
    assert tidy(tmp_path, "espnet", text, **about) == [("dev", 9.0, 5)]
    bins = tidy(tmp_path, "espnet", text, condition=["bin"], **about)
    assert bins == [("all", 9.0, 5), ("<10", 8.0, 3)]


@pytest.mark.parametrize("value", ["", "nan", "diverged"])
def test_a_missing_score_keeps_its_row(tmp_path, value):
    text = csv("resolution", f"m,24,top1,{value},percent,100,100", "m,32,top1,60,percent,9,9")
    (missing, _, count), there = tidy(tmp_path, "timm", text)
    assert (missing, count, there) == ("24", 100, ("32", 60.0, 9))
    losses = LOSSES.replace("4.0", value)  # within a range
    about = {"metrics": {"loss": "lower"}, "condition": ["position"], "ranges": [2, 4]}
    (_, value, _), (_, there, _) = tidy(tmp_path, "fairseq", losses, **about)
    assert (math.isnan(value), there) == (True, 6.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (csv("width", "m,24,top1,5,percent,1,1"), "no 'resolution'; there is how"),
        (csv("resolution", "m,24,top5,5,percent,1,1"), "no 'top1'; there is top5"),
        ("resolution,top1\n24,5\n", "no 'metric'; there is resolution, top1"),
        ("", "cannot be read"),
    ],
)
def test_a_csv_of_something_else_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"x\.csv:? {message}"):
        tidy(tmp_path, "timm", text)


def test_items_of_which_no_score_is_made_are_refused(tmp_path):
    raw = tmp_path / "raw.csv"
    raw.write_text("condition,metric,how,item,value,weight\n8,top1,promille,0,1,1\n")
    one = Evaluation.model_validate(
        {"metrics": {"top1": "higher"}, "script": __file__}, context=[tmp_path]
    )
    with pytest.raises(ValueError, match=r"raw\.csv: no 'promille'; there is bleu, "):
        scores.summed(one, "timm", raw)


def test_single_items_get_the_conditions_of_their_scores(tmp_path):
    raw = tmp_path / "raw.csv"
    raw.write_text(
        "position,metric,how,item,value,weight\n"
        "1,loss,mean,0,2,1\n2,loss,mean,0,4,1\n1,loss,mean,1,3,1\n"
    )
    one = Evaluation.model_validate(
        {"metrics": {"loss": "lower"}, "condition": ["position"], "ranges": [2]}, context=[tmp_path]
    )
    assert scores.summed(one, "fairseq", raw).to_csv(index=False).split() == [
        "condition,metric,how,item,value,weight",
        "1–2,loss,mean,0,6,2",
        "1–2,loss,mean,1,3,1",
    ]
