"""Tidy scores of what the evaluations write."""

import pytest

pytest.importorskip("pandas")

from cape_plugins.experiments import scores
from cape_plugins.experiments.study import Evaluation


def tidy(tmp_path, host, text, **about):
    path = tmp_path / "x.csv"
    path.write_text(text)
    metrics = about.pop("metrics", {"top1": "higher"})
    one = Evaluation.model_validate({"metrics": metrics, **about}, context=tmp_path)
    return [(r["condition"], r["value"], r["items"]) for r in scores.tidy(one, host, path)]


def test_images_by_size(tmp_path):
    text = "resolution,bin,top1,images\n24,,50.5,100\n32,,60,100\n"
    assert tidy(tmp_path, "timm", text) == [("24", 50.5, 100), ("32", 60.0, 100)]


def test_several_columns_name_a_condition_and_where_keeps_rows(tmp_path):
    text = "resolution,extent,tta,top1,images\n24,1,0,50,9\n24,sqrt,0,51,9\n24,1,1,52,9\n"
    found = tidy(tmp_path, "timm", text, condition=["resolution", "extent"], where={"tta": 0})
    assert found == [("24 1", 50.0, 9), ("24 sqrt", 51.0, 9)]


def test_losses_by_position_become_ranges_weighed_by_tokens(tmp_path):
    text = "position,loss,sentences\n1,2.0,3\n2,4.0,1\n3,6.0,1\n9,1.0,1\n"
    about = {"command": "loss", "condition": ["position"], "metrics": {"loss": "lower"}}
    assert tidy(tmp_path, "fairseq", text, ranges=[2, 4], **about) == [
        ("1–2", 2.5, 4),
        ("3–4", 6.0, 1),
    ]
    about["condition"] = []
    assert tidy(tmp_path, "fairseq", text, name="all of it", **about) == [("all of it", 17 / 6, 6)]


def test_word_errors_of_whole_sets_unless_bins_are_asked_for(tmp_path):
    text = "test_set,bin,wer,utterances\ndev,all,9,5\ndev,<10,8,3\ndev,>=10,10,2\n"
    about = {"metrics": {"wer": "lower"}}
    assert tidy(tmp_path, "espnet", text, **about) == [("dev", 9.0, 5)]
    bins = tidy(tmp_path, "espnet", text, condition=["bin"], **about)
    assert bins == [("all", 9.0, 5), ("<10", 8.0, 3), (">=10", 10.0, 2)]


def test_a_script_writes_conditions_itself(tmp_path):
    text = "condition,metric,value,items\n8,right,90,50\n8,wrong,10,50\n16,right,70,20\n"
    found = tidy(tmp_path, "fairseq", text, script="x.py", metrics={"right": "higher"})
    assert found == [("8", 90.0, 50), ("16", 70.0, 20)]


def test_metrics_of_the_training_itself(tmp_path):
    text = "step,epoch,name,value\n10,1,loss,3\n10,1,lr,0.1\n20,1,loss,2\n"
    found = tidy(
        *(tmp_path, "fairseq", text),
        **{"command": "training", "condition": ["step"], "metrics": {"loss": "lower"}},
    )
    assert found == [("10", 3.0, None), ("20", 2.0, None)]


def test_a_column_that_there_is_not_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no column 'size', but \['resolution', 'top1'\]"):
        tidy(tmp_path, "timm", "resolution,top1\n24,50\n", condition=["size"])


def test_single_items_get_the_conditions_of_their_scores(tmp_path):
    raw, out = tmp_path / "raw.csv", tmp_path / "items.csv"
    raw.write_text("position,metric,item,value,weight\n1,loss,0,2,1\n2,loss,0,4,1\n1,loss,1,3,1\n")
    one = Evaluation.model_validate(
        {"metrics": {"loss": "lower"}, "condition": ["position"], "ranges": [2]}, context=tmp_path
    )
    scores.items(one, "fairseq", raw, out)
    assert out.read_text().split() == [
        "condition,metric,item,value,weight",
        "1–2,loss,0,6,2",
        "1–2,loss,1,3,1",
    ]
