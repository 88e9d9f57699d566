"""What the evaluation commands share: their ways in and out, options, CSVs and line plots."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from cape_plugins.evaluation import command, output
from cape_plugins.evaluation.options import Options, named, option


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
