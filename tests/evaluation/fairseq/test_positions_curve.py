"""Losses over positions as a picture: python -m cape_plugins.plot positions."""

import pytest

pytest.importorskip("matplotlib")

from cape_plugins.evaluation.fairseq import positions_curve
from cape_plugins.plot.__main__ import main

HEADER = "model,checkpoint,data,subset,position,loss,sentences\n"


def write(path, model, losses, sentences, subset="test"):
    lines = [
        f"{model},{path.name}.pt,bin,{subset},{i},{loss},{n}\n"
        for i, (loss, n) in enumerate(zip(losses, sentences, strict=True), 1)
    ]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return path


def test_the_average_is_over_tokens_and_shorter_at_the_ends():
    series = positions_curve.Series("cape", [1.0, 2.0, 4.0, 8.0], [4, 4, 2, 1])
    assert positions_curve.smoothed(series, 1) == [1, 2, 4, 8]
    assert positions_curve.smoothed(series, 3) == pytest.approx(
        [(4 + 8) / 8, (4 + 8 + 8) / 10, (8 + 8 + 8) / 7, (8 + 8) / 3]
    )


def test_several_test_sets_are_told_apart(tmp_path):
    a = write(tmp_path / "a.csv", "cape", [1, 2], [3, 3])
    b = write(tmp_path / "b.csv", "cape", [1, 3], [3, 2], subset="valid")
    assert [series.name for series in positions_curve.read([a])] == ["cape"]
    assert [series.name for series in positions_curve.read([a, b])] == [
        "cape, bin test",
        "cape, bin valid",
    ]


def test_the_command_draws_seeds_of_a_model_as_one_curve(tmp_path):
    files = [
        write(tmp_path / f"{model}{seed}.csv", model, [3 - seed, 2, 1.5, 2], [30, 30, 20, 2])
        for model in ("cape", "sinpos")
        for seed in (0, 1)
    ]
    out = tmp_path / "loss.svg"
    main(["positions", *map(str, files), "--trained-to", "3", "--out", str(out)])
    text = out.read_text()
    assert text.lstrip().startswith("<?xml")
    for label in ("cape", "sinpos", "longest in training"):
        assert text.count(f"<!-- {label} -->") == 1  # once in the legend


def test_what_cannot_be_drawn_is_refused(tmp_path, capsys):
    few = write(tmp_path / "few.csv", "cape", [1], [3])
    (tmp_path / "other.csv").write_text("model,top1\na,1\n")
    for file, said in ((few, "reached by 10 sentences, but by 3"), ("other.csv", "no column")):
        with pytest.raises(SystemExit) as ended:
            main(["positions", str(tmp_path / file), "--out", str(tmp_path / "a.png")])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()
