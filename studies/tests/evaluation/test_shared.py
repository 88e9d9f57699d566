"""What the evaluation commands share: their ways in and out, and options."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch
from pydantic import Field, PositiveInt

import cape_plugins
from cape_studies import command
from cape_studies.command import CommandOptions, Pairs, Typed, named
from cape_support import ROOT, commands, run

# --- ways in and out


OTHERS = [
    pytest.param(one, marks=pytest.mark.release) for one in ("fairseq", "espnet", "transformers")
]


@pytest.mark.parametrize("host", ["timm", *OTHERS])
def test_a_command_without_its_host_says_in_one_line_what_to_install(host):
    missing = {"espnet": "espnet2"}.get(host, host)
    code = f"import sys, runpy\nsys.modules[{missing!r}] = None\n"
    code += f"sys.argv = ['x', {host!r}]\n"
    code += "runpy.run_module('cape_studies.evaluate', run_name='__main__')"
    status, said = run(sys.executable, "-c", code)
    assert status == 2
    assert "Traceback" not in said
    line = said.splitlines()[-1]  # before it torch may note that there is no CUDA
    assert line.startswith(f"cape-{host}-eval: error: ")
    assert missing in line
    assert line.endswith(f"pip install 'cape-studies[{host}]'")


@pytest.mark.release
@pytest.mark.parametrize(
    ("host", "module", "known"),
    [
        ("timm", "timm.loading", "timm.is_model('vit_tiny_patch16_cape_224')"),
        ("fairseq", "fairseq.evaluate", "'cape_transformer' in fairseq.models.MODEL_REGISTRY"),
        ("espnet2", "espnet.evaluate", "'cape_asr' in espnet2.tasks.asr.model_choices.classes"),
    ],
)
def test_our_models_are_known_where_autoload_is_switched_off(host, module, known):
    pytest.importorskip(host)
    code = f"import cape_studies.evaluate.{module}, {host}\nprint('known:', {known})"
    _, said = run(sys.executable, "-c", code, CAPE_PLUGINS_AUTOLOAD=0)
    assert "known: True" in said


def test_importing_a_commands_package_imports_nothing_heavy():
    code = (
        "import sys, cape_studies.evaluate.timm, cape_studies.evaluate.fairseq, "
        "cape_studies.evaluate.espnet\n"
        "print([name for name in sys.modules if name in ('torch', 'timm', 'fairseq', 'espnet2')])"
    )
    assert run(sys.executable, "-c", code) == (0, "[]\n")


def test_the_plug_in_imports_nothing_of_the_laboratory():
    files = [*Path(cape_plugins.__file__).parent.rglob("*.py")]
    assert len(files) > 20
    for path in files:
        assert not re.search(r"^ *(from|import) +cape_studies", path.read_text("utf-8"), re.M)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (ValueError("Original Traceback (most recent call last):\nValueError: a.png"), "a.png"),
        (MemoryError("full"), "out of memory, give smaller batches or inputs: full"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "can't allocate memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "2 GiB."),
    ],
)
def test_an_error_is_one_line_and_a_loading_processs_traceback_is_left_out(error, line, capsys):
    with pytest.raises(SystemExit) as stop, command.one_line_errors("tool"):
        raise error
    assert stop.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("tool: error: ")
    assert said.endswith(line)
    assert "Traceback" not in said


def test_an_error_of_ours_is_not_taken_for_bad_input():
    with pytest.raises(RuntimeError, match="half"), command.one_line_errors("tool"):
        raise RuntimeError("half of the sentences were evaluated")


# --- options


class Small(CommandOptions):
    """Of a command."""

    folder: Annotated[Path, Typed(bare=True)] = Field(description="where")
    path: Annotated[list[str], Typed(short="-p")] = Field(min_length=1, description="100 % of it")
    sizes: list[PositiveInt] = Field([8, 16], description="of images")
    edges: list[float] = Field([1.0, 2.5], description="in s")
    limits: list[Annotated[int, Field(gt=0)] | Literal["auto"]] = Field([], description="or auto")
    rate: float | None = Field(None, description="in Hz")
    fast: bool = Field(False, description="or not")
    kind: Literal["one", "two"] = Field("one", description="of these")
    settings: Pairs = Field({}, description="of the model")


def read(typed: str) -> Small:
    return command.parsed("tool", Small, typed.split())


def test_the_command_line_is_made_from_the_fields():
    assert read("d --path a") == Small(folder=Path("d"), path=["a"])
    typed = "d -p a=1,2.pt b[3] --sizes 1 2 --edges --limits 3 auto --rate 3 --fast --kind two "
    kwargs = "--settings img_size=(32,48) scale=-0.5 name=x=y on=True"
    assert read(typed + kwargs) == Small(
        folder=Path("d"),
        path=["a=1,2.pt", "b[3]"],
        sizes=[1, 2],
        edges=[],
        limits=[3, "auto"],
        rate=3.0,
        fast=True,
        kind="two",
        settings=dict(img_size=(32, 48), scale=-0.5, name="x=y", on=True),
    )


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("d -p a --sizes 0", "--sizes: input should be greater than 0, got '0'"),
        ("d -p a --sizes 2.5", "--sizes: input should be a valid integer"),
        ("d -p a --sizes 4 4", "tool: error: --sizes: the list has 4 twice"),
        ("d -p a --limits 0", "--limits: input should be greater than 0 or input should be 'auto'"),
        ("d", "the following arguments are required: -p/--path"),
        ("d -p", "--path: list should have at least 1 item"),
        ("-p a --fast", "the following arguments are required: folder"),
        ("d -p a --kind three", "--kind: input should be 'one' or 'two', got 'three'"),
        ("d -p a --settings =3", "--settings: takes NAME=VALUE, got '=3'"),
        ("d -p a --other", "there is no --other: usage: tool [-h] -p "),
        ("d e -p a", "there is no e: usage: tool "),
    ],
)
def test_a_wrong_command_line_ends_with_one_line_of_error_and_status_2(typed, message, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main("tool", Small, print, typed.split())
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert message in line


def test_help_is_no_error_and_says_what_each_option_is(capsys):
    with pytest.raises(SystemExit) as stop:
        read("--help")
    assert stop.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " --path [PATH ...] 100 % of it" in said
    assert "--sizes [SIZES ...] of images (default: 8 16)" in said
    assert "--kind {one,two} of these (default: one)" in said
    assert "None" not in said


def test_a_reader_that_stops_reading_is_no_error():
    code = "from cape_studies import command\nwith command.one_line_errors('x'): print('said')"
    reading, writing = os.pipe()
    os.close(reading)  # as head does, once it has its lines
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE)
    assert not done.stderr


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("timm", ["--throughput", "--bins 100", "--amp"]),
        ("fairseq", ["bleu", "loss", "--reference"]),
        ("espnet", ["--bins 3 6 12 24"]),
    ],
)
def test_the_evaluations_of_the_readmes_parse(host, wanted):
    module = pytest.importorskip(f"cape_studies.evaluate.{host}.evaluate")
    lines = commands(ROOT / "integrations" / host / "README.md")
    found = [words for program, *words in lines if program == f"cape-{host}-eval"]
    for words in found:
        assert isinstance(command.parsed("tool", module.OPTIONS, words), CommandOptions)
    text = " ".join(" ".join(words) for words in found)
    assert not [one for one in wanted if one not in text]


def test_a_name_is_what_stands_before_the_equals_sign_unless_that_is_a_path(tmp_path):
    assert named("a=b", "--model") == ("a", "b")
    (tmp_path / "a=b").mkdir()
    assert named(f"{tmp_path}/a=b", "--model") == (None, f"{tmp_path}/a=b")
    with pytest.raises(ValueError, match="--model takes PATH or NAME=PATH, got '=b'"):
        named("=b", "--model")
