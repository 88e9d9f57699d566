"""What the evaluation commands share: their ways in and out, options, CSVs and line plots."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cape_plugins.evaluation import command, items, output
from cape_plugins.evaluation.options import Options, RunOptions, named, option


@pytest.mark.parametrize(
    ("extra", "missing"),
    [("timm", "timm"), ("fairseq", "fairseq"), ("fairseq", "tabulate"), ("espnet", "espnet2")],
)
def test_a_command_without_what_it_needs_says_in_one_line_what_to_install(extra, missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from cape_plugins.evaluation.{extra} import main; main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if f"cape-{extra}-eval" in line]
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(lines) == 1
    assert missing in lines[0]
    assert f"pip install 'cape-plugins[{extra}]'" in lines[0]


@pytest.mark.parametrize(
    ("host", "module", "known"),
    [
        ("timm", "loading", "timm.is_model('vit_tiny_patch16_cape_224')"),
        ("fairseq", "checkpoints", "'cape_transformer' in fairseq.models.MODEL_REGISTRY"),
        ("espnet2", "checkpoints", "'cape_asr' in espnet2.tasks.asr.model_choices.classes"),
    ],
)
def test_our_models_are_known_where_autoload_is_switched_off(host, module, known):
    pytest.importorskip(host)
    code = (
        f"import cape_plugins.evaluation.{host.rstrip('2')}.{module}, {host}\n"
        f"print('known:', {known})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CAPE_PLUGINS_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["known: True"], done.stderr


def test_importing_a_commands_package_imports_nothing_heavy():
    code = (
        "import sys, cape_plugins.evaluation.timm, cape_plugins.evaluation.fairseq, "
        "cape_plugins.evaluation.espnet\n"
        "print([name for name in sys.modules if name in ('torch', 'timm', 'fairseq', 'espnet2')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\n  lines", "two lines"),
        ("Caught it\nOriginal Traceback (most recent call last):\n  x\nValueError: a.png", "a.png"),
    ],
)
def test_an_error_is_one_line_and_a_loading_processs_traceback_is_left_out(text, line, capsys):
    with pytest.raises(SystemExit) as stop, command.one_line_errors("tool"):
        raise ValueError(text)
    assert stop.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("tool: error: ")
    assert said.endswith(line)
    assert "Traceback" not in said


@dataclass(frozen=True, kw_only=True)
class Small(Options):
    """Of a command."""

    path: str = option("where")
    sizes: Sequence[int] = option("of images", (8, 16), least=1)
    rate: float | None = option("in Hz", None)
    fast: bool = option("or not", False)


def read(*arguments: str) -> Small:
    return Small.read(Small.add_to(argparse.ArgumentParser()).parse_args(arguments))


def test_a_field_is_read_by_its_type_and_has_its_default():
    assert read("--path", "a") == Small(path="a")
    given = read("--path", "a", "--sizes", "1", "2", "--rate", "3", "--fast")
    assert given == Small(path="a", sizes=[1, 2], rate=3.0, fast=True)


def test_a_field_without_a_default_is_required(capsys):
    with pytest.raises(SystemExit):
        read()
    assert "the following arguments are required: --path" in capsys.readouterr().err


def test_a_number_below_the_least_is_refused_wherever_options_are_made():
    with pytest.raises(ValueError, match="--sizes must be ≥ 1, got 0"):
        Small(path="a", sizes=[4, 0])


def test_the_help_tells_the_default():
    text = Small.add_to(argparse.ArgumentParser()).format_help()
    assert "of images (default: 8 16)" in text
    assert "in Hz\n" in text


def test_a_name_is_what_stands_before_the_equals_sign_unless_that_is_a_path(tmp_path):
    assert named("a=b", "--model") == ("a", "b")
    (tmp_path / "a=b").mkdir()
    assert named(f"{tmp_path}/a=b", "--model") == (None, f"{tmp_path}/a=b")
    with pytest.raises(ValueError, match="--model takes PATH or NAME=PATH, got '=b'"):
        named("=b", "--model")


def test_a_csv_with_another_column_is_not_continued(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert output.read_rows(tmp_path / "a.csv", ["x"], "it") == [{"x": "1", "y": "2"}]
    with pytest.raises(ValueError, match="was not written by it: it has a column 'y'"):
        output.read_rows(tmp_path / "a.csv", ["x"], "it", exact=True)


@dataclass
class Line:
    """Of a CSV."""

    name: str
    loss: float | None = None


def test_a_csv_is_made_with_its_first_row_so_that_none_has_a_header_alone(tmp_path):
    path = tmp_path / "a.csv"
    with pytest.raises(KeyboardInterrupt), output.CsvFile(path, Line):
        raise KeyboardInterrupt
    assert not path.exists()
    with output.CsvFile(path, Line) as file:
        file.add(Line("x", 0.5))
        assert path.read_text() == "name,loss\nx,0.5\n"


def write_and_die(path, row: Line) -> None:
    """What is left of a run with --overwrite that does not come to its end."""
    before = path.read_text()
    with contextlib.suppress(KeyboardInterrupt), output.CsvFile(path, Line, True) as file:
        file.add(row)
        assert path.read_text() == before
        raise KeyboardInterrupt


def test_an_old_csv_stays_as_it_is_until_the_one_that_replaces_it_is_done(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("old")
    write_and_die(path, Line("x"))
    assert path.read_text() == "old"
    with output.CsvFile(path, Line, overwrite=True) as file:
        assert path.read_text() == "old"
        file.add(Line("y"))
    assert path.read_text() == "name,loss\ny,\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_overwrite_is_continued_where_its_rows_are(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("old")
    write_and_die(path, Line("x", 0.25))
    known = output.read_begun(path, Line, "it")
    assert known == [Line("x", 0.25)]
    assert output.matching(known, {"name": "x"}) == known
    assert output.matching(known, {"name": "x", "loss": None}) == []
    with output.CsvFile(path, Line, resume=True) as file:
        file.add(Line("y"))
    assert path.read_text() == "name,loss\nx,0.25\ny,\n"
    assert list(tmp_path.iterdir()) == [path]


@dataclass(frozen=True, kw_only=True)
class Run(RunOptions):
    """Of a command that runs models."""

    model: Sequence[str] = option("NAME=PATH", ())


def test_no_output_is_an_input_or_another_output(tmp_path):
    given, folder = tmp_path / "model.pt", str(tmp_path)
    given.write_text("weights")
    with pytest.raises(
        ValueError, match=r"model\.pt would be written over --model: choose another"
    ):
        Run(model=[f"name={given}"], csv=tmp_path / "." / "model.pt", overwrite=True)
    with pytest.raises(ValueError, match="would be written over another output"):
        Run(csv=tmp_path / "a", markdown=tmp_path / "a")
    with pytest.raises(ValueError, match="would be written over another output"):
        Run(out=f"{folder}/a", markdown=tmp_path / "a.csv")
    Run(model=[str(given)], out=f"{folder}/model")


def test_items_are_there_when_they_are_whole(tmp_path):
    path, row = tmp_path / "items.csv", Line("x")

    def dying():
        yield row, [("loss", 7, 0.5, 1)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        items.write(path, ["name"], items.RATIO, dying())
    assert not path.exists()
    items.write(path, ["name"], items.RATIO, [(row, [("loss", 7, 0.5, 1)])])
    assert path.read_text() == "name,metric,item,value,weight\nx,loss,7,0.5,1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_in_place(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # as /dev is for users
    output.check_absent([Path(os.devnull)], overwrite=True)
    with output.CsvFile(Path(os.devnull), Line, overwrite=True) as file:
        file.add(Line("x"))
        assert file.target == Path(os.devnull)


def test_a_folder_is_no_place_for_a_file(tmp_path):
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="is a folder: give the name of a file"):
            output.check_absent([tmp_path], overwrite)


def test_a_line_is_the_mean_over_seeds_with_their_range_shaded(tmp_path):
    pytest.importorskip("matplotlib")
    from cape_plugins.evaluation import figure

    with figure.axes(tmp_path / "a.png", "x", "y") as (axis,):
        assert figure.line(axis, [1, 2], [[1.0, 3.0], [4.0, 4.0]], "seeds") == [2.0, 4.0]
        assert figure.line(axis, [1, 2], [[1.0], [2.0]], "one") == [1.0, 2.0]
    (shade,) = axis.collections
    corners = {tuple(point) for point in shade.get_paths()[0].vertices.tolist()}
    assert {(1.0, 1.0), (1.0, 3.0), (2.0, 4.0)} <= corners
    assert (tmp_path / "a.png").exists()
