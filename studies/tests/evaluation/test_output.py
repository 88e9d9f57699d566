"""Scores, what items add to them, and the CSVs of both, against numbers worked out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from cape_studies.evaluate import output
from cape_studies.evaluate.output import EvaluationOptions, Score, write
from cape_studies.items import away
from lab_support import rows

ABOUT = {"model": "m", "size": 8}


def test_a_score_is_the_sum_of_its_items_over_their_weights():
    items = [("a", 1.5, 2), ("b", 0, 3), ("c", 3, 5)]
    percent, mean = (Score.of(ABOUT, "x", how, items) for how in ("percent", "mean"))
    assert (percent.value, mean.value) == (pytest.approx(45), pytest.approx(0.45))
    for one in (percent, mean):
        assert (one.about, one.metric, one.count, one.weight) == (ABOUT, "x", 3, 10)
        assert one.items == items
    assert (percent.how, mean.how) == ("percent", "mean")
    for how in ("percent", "mean"):
        assert math.isnan(Score.of(ABOUT, "x", how, [("a", 1, 0), ("b", 0, 0)]).value)
    with pytest.raises(ValueError, match="argument 2 is"):
        Score.of(ABOUT, "x", "mean", [("a", 1, 1), ("b", 1)])
    alone = Score(ABOUT, "speed", "number", 2.5)
    assert (alone.count, alone.weight, alone.items) == (None, None, ())


def test_bleu_is_its_formula_with_and_without_smoothing():
    # 9 words where the reference has 12; 8, 4, 1 and 0 of 9, 7, 5 and 3 n-grams match
    parts = [("a", 4, 7, 4, 2, 1, 0, 4, 3, 2, 1), ("b", 5, 5, 4, 2, 0, 0, 5, 4, 3, 2)]
    score = Score.of(ABOUT, "b", "bleu", parts)
    brevity, smoothed = math.exp(1 - 12 / 9), 1 / 2 / 3  # the first zero counts as a half
    precisions = 8 / 9 * 4 / 7 * 1 / 5 * smoothed
    assert score.value == pytest.approx(100 * brevity * precisions**0.25)
    assert (score.count, score.weight) == (2, 12)
    assert Score.of(ABOUT, "b", "bleu_unsmoothed", parts).value == 0
    whole = [("a", 9, 7, 6, 4, 3, 1, 9, 8, 7, 6)]  # longer than the reference: no brevity
    expected = 100 * (6 / 9 * 4 / 8 * 3 / 7 * 1 / 6) ** 0.25
    for how in ("bleu", "bleu_unsmoothed"):
        assert Score.of(ABOUT, "b", how, whole).value == pytest.approx(expected)


def test_items_away_from_the_limits_are_the_fewer_of_not_wrong_and_not_right():
    # wrong, right, right, right, half: four are not wrong, two are not right
    percent = np.array([[0, 2], [2, 2], [1, 1], [1, 1], [1, 2]])
    assert away("percent", percent) == 2
    assert away("percent", percent[:3]) == 1
    assert away("percent", percent[[0, 0, 4]]) == 1  # one is not wrong
    assert away("mean", percent) == math.inf  # but for parts of 1
    assert away("mean", np.array([[1, 1]] * 8 + [[0, 1]] * 2, float)) == 2
    # lengths of hypothesis and reference, matching 1- to 4-grams, all of them
    exact, cut = [5, 5, 5, 4, 3, 2, 5, 4, 3, 2], [4, 5, 4, 3, 2, 1, 4, 3, 2, 1]
    wrong, near = [5, 5, 4, 3, 2, 0, 5, 4, 3, 2], [5, 5, 4, 3, 2, 1, 5, 4, 3, 2]
    for how in ("bleu", "bleu_unsmoothed"):
        assert away(how, np.array([exact, exact, cut, near, near])) == 3
        assert away(how, np.array([exact, wrong, wrong, wrong])) == 1
        assert isinstance(away(how, np.array([wrong])), float)


@pytest.mark.parametrize(
    ("step", "labels", "bins"),
    [
        (0, ["<10", "10-15", "15-20", ">=20"], [1, 1, 2, 2, 3, 3, 4, 4]),
        (1, ["<=10", "11-15", "16-20", ">20"], [1, 1, 1, 2, 2, 3, 3, 4]),
    ],
)
def test_an_edge_begins_a_bin_and_ends_one_of_whole_numbers(step, labels, bins):
    sizes = [1, 9, 10, 14, 15, 19, 20, 500]
    counted = {"wer": [(size, 1, 2) for size in sizes], "cer": [(size, 1, 4) for size in sizes]}
    every, _, *found = output.in_bins({"model": "m"}, counted, sizes, [15, 10, 20], step)
    assert (every.about, every.count) == ({"model": "m", "bin": "all"}, 8)
    assert [(one.metric, one.how, one.value) for one in found] == [
        *([("wer", "percent", 50), ("cer", "percent", 25)] * 4)
    ]
    assert [one.about["bin"] for one in found[::2]] == labels
    inside = {item[0]: i for i, one in enumerate(found[::2], 1) for item in one.items}
    assert [inside[size] for size in sizes] == bins
    assert sum(one.count for one in found[::2]) == len(sizes)
    # empty ones are left out
    labels = [one.about["bin"] for one in output.in_bins({}, counted, sizes, [600], step)]
    assert labels == ["all", "all", *[f"{'<=' if step else '<'}600"] * 2]
    assert len(list(output.in_bins({}, counted, sizes, [], step))) == 2
    halves = [*output.in_bins({}, counted, [0.4, *[2.6] * 7], [0.5, 2.5])][::2]
    found = [(one.about["bin"], one.count) for one in halves]
    assert found == [("all", 8), ("<0.5", 1), (">=2.5", 7)]


# --- options


def test_the_defaults_of_an_evaluation():
    options = EvaluationOptions()
    assert (options.device, options.csv, options.items) == (None, None, None)
    assert (options.amp, options.overwrite) == (False, False)
    with pytest.raises(ValidationError, match="there"):
        EvaluationOptions(there=1)


def test_the_device_is_the_gpu_if_there_is_one_and_what_cannot_compute_is_refused(monkeypatch):
    assert EvaluationOptions(device="cpu").place == torch.device("cpu")
    asked: list[str] = []
    monkeypatch.setattr(torch, "zeros", lambda n, device: asked.append(device) or FakeOne())
    for there, place in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert EvaluationOptions().place == torch.device(place)
    assert asked == ["cuda", "cpu"]
    monkeypatch.undo()
    for name, why in (("meta", "meta"), ("nowhere", "nowhere")):
        with pytest.raises(ValueError, match=f"--device {name} cannot be used: .*{why}") as error:
            print(EvaluationOptions(device=name).place)
        assert "\n" not in str(error.value)

    def without_cuda(n, device):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch, "zeros", without_cuda)
    with pytest.raises(ValueError, match="--device cuda cannot be used: Torch not compiled"):
        print(EvaluationOptions(device="cuda").place)


class FakeOne:
    """A tensor on a device that this machine may not have."""

    def item(self) -> float:
        return 0.0


def test_no_output_is_another_output(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"the output has .*/a.csv twice: choose another name"):
        EvaluationOptions(csv=tmp_path / "a.csv", items=tmp_path / "b" / ".." / "a.csv")
    assert EvaluationOptions(csv=tmp_path / "a.csv", items=tmp_path / "b.csv")


# --- files and the table


def test_items_make_the_score_that_stands_beside_them(tmp_path, capsys):
    about, ones = {"model": "m", "size": 8, "logn": None}, [("a", 1, 1), ("b", 0, 3)]
    made = [Score.of(about, "top1", "percent", ones), Score.of(about, "x", "mean", ones)]
    options = EvaluationOptions(csv=tmp_path / "o.csv", items=tmp_path / "i.csv")
    write(options, [Score({**about, "logn": 0}, "speed", "number", 12.5, 4), *made])
    columns = ["model", "size", "logn", "metric", "value", "how", "items", "weight"]
    assert list(rows(tmp_path / "o.csv")[0]) == columns
    assert [[row[name] for name in columns] for row in rows(tmp_path / "o.csv")] == [
        ["m", "8", "0", "speed", "12.5", "number", "4", ""],
        ["m", "8", "", "top1", "25.0", "percent", "2", "4"],
        ["m", "8", "", "x", "0.25", "mean", "2", "4"],
    ]
    shared = {"model": "m", "size": "8", "logn": "", "metric": "top1", "how": "percent"}
    first, second, *others = rows(tmp_path / "i.csv")
    assert list(first.items()) == [*shared.items(), ("item", "a"), ("value", "1"), ("weight", "1")]
    assert second == {**shared, "item": "b", "value": "0", "weight": "3"}
    assert [row["metric"] for row in others] == ["x", "x"]
    head, *lines = capsys.readouterr().out.strip().splitlines()
    # what is the same in all lines is left out
    assert [line.split() for line in (head, *lines)] == [
        *(["model", "logn", "metric", "value"], ["m", "0", "speed", "12.50"]),
        *(["m", "None", "top1", "25.00"], ["m", "None", "x", "0.25"]),
    ]


def test_where_there_are_scores_there_are_their_items(tmp_path):
    (tmp_path / "o.csv.part").mkdir()  # so the scores cannot be written
    options = EvaluationOptions(csv=tmp_path / "o.csv", items=tmp_path / "i.csv")
    with pytest.raises(OSError, match=r"o\.csv\.part"):
        write(options, [Score.of(ABOUT, "x", "mean", [("a", 1.0, 1)])])
    assert options.items.exists()


@pytest.mark.parametrize("how", ["bleu", "bleu_unsmoothed"])
def test_bleus_items_have_its_statistics(tmp_path, how):
    item = ("a", 4, 7, 4, 2, 1, 0, 4, 3, 2, 1)
    options = EvaluationOptions(items=tmp_path / "i.csv")
    write(options, [Score.of(ABOUT, "b", how, [item])])
    (row,) = rows(tmp_path / "i.csv")
    parts = [f"stats_{i}" for i in range(10)]
    assert list(row) == ["model", "size", "metric", "how", "item", *parts]
    assert [*row.values()][4:] == [str(one) for one in item]
    with pytest.raises(ValueError, match="zip"):  # an item of other parts than its score's
        write(
            options.model_copy(update={"items": None}),
            [Score(ABOUT, "b", how, 1.0, 1, 1, [item[:4]])],
        )


def test_the_table_keeps_model_metric_and_value_and_leaves_empty_what_is_missing():
    same = {"model": "m", "metric": "x", "value": 1.0, "how": "mean", "items": 2, "weight": 3.0}
    lines = output.table([same, same]).splitlines()
    assert [line.split() for line in lines] == [
        ["model", "metric", "value"],
        *[["m", "x", "1.00"]] * 2,
    ]
    other = {**same, "value": math.nan, "size": 2.345, "items": 5, "how": "number", "weight": None}
    head, one, two = output.table([{**same, "size": 1.0}, other]).splitlines()
    assert head.split() == ["model", "metric", "value", "size"]
    assert (one.split(), two.split()) == (["m", "x", "1.00", "1.00"], ["m", "x", "2.35"])


def test_without_scores_or_items_there_is_no_file(tmp_path):
    options = EvaluationOptions(csv=tmp_path / "o.csv", items=tmp_path / "i.csv")
    write(options, [Score(ABOUT, "speed", "number", 2.5)])
    assert [*tmp_path.iterdir()] == [tmp_path / "o.csv"]


def test_an_old_file_stays_as_it_is_until_the_one_that_replaces_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    options, part = EvaluationOptions(csv=path, overwrite=True), tmp_path / "a.csv.part"
    path.write_text("old")

    def scores():
        yield Score({"model": "m"}, "x", "number", 1.0)
        assert path.read_text() == "old"

    def full(frame, to, **_):
        Path(to).write_text("half")
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(output.pd.DataFrame, "to_csv", full)
        with pytest.raises(OSError, match="no space"):
            write(options, scores())
    assert (path.read_text(), sorted(tmp_path.iterdir())) == ("old", [path, part])
    write(options, scores())
    assert len(rows(path)) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"items": "model.pt", "overwrite": True}, "model.pt .*[.]csv"),
        ({"csv": "there.csv"}, "there.csv exists: .*--overwrite"),
        ({"items": "there.csv"}, "there.csv exists: .*--overwrite"),
        ({"csv": "no/a.csv"}, "no/a.csv cannot be written"),
    ],
)
def test_a_place_where_no_csv_can_be_is_refused_before_any_work(
    options, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("scores")
    with pytest.raises(ValueError, match=message):
        write(EvaluationOptions(**options), map(pytest.fail, ["a score was made"]))
    assert [*Path().iterdir()] == [Path("there.csv")]
