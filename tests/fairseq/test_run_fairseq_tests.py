"""integrations/fairseq/run_fairseq_tests.py, the comparison with fairseq's own tests."""

import sys

import pytest

pytest.importorskip("fairseq")

from cape_support import ROOT, run

pytestmark = pytest.mark.release

SCRIPT = ROOT / "integrations" / "fairseq" / "run_fairseq_tests.py"

# the functions that the tests of a checkout call, and tests as those are written
UTILS = """
def train_translation_model(data_dir, arch, extra_flags=None, task="translation"):
    flags = dict(zip(extra_flags[::2], extra_flags[1::2]))
    assert flags["--encoder-layers"] == "2" and flags["--encoder-embed-dim"] == "16"
    if arch.startswith("cape") and flags["--pos"] == "relpos" and task == "translation":
        raise RuntimeError(f"{arch} is broken")
    if task == "translation_multi_simple_epoch":
        assert flags.get("--source-scale") == ("1" if flags.get("--pos") == "cape" else None)

def train_language_model(data_dir, arch, extra_flags=None):
    assert "--encoder-layers" not in extra_flags
    assert arch == "transformer_lm", "ours fails as well"
"""
BINARIES = """
import unittest
from tests.utils import train_language_model, train_translation_model

class TestTranslation(unittest.TestCase):
    def test_transformer(self, **options):
        size = ["--encoder-embed-dim", "16"]
        train_translation_model("x", arch="transformer_iwslt_de_en", extra_flags=size, **options)

    def test_translation_multi_simple_epoch_no_vepoch(self):
        self.test_transformer(task="translation_multi_simple_epoch")

    def test_raw(self):
        self.fail("whatever the model")

class TestLanguageModeling(unittest.TestCase):
    def test_transformer_lm(self):
        train_language_model("x", "transformer_lm", ["--nval", "1"])
"""


def compare(*arguments):
    return run(sys.executable, SCRIPT, *arguments)


def cells(output, test):
    (line,) = [line for line in output.splitlines() if line.startswith(f"| {test} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_what_only_ours_fails_is_worse_and_ends_with_status_1(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "examples" / "translation_moe").mkdir(parents=True)
    for name, text in {"__init__": "", "utils": UTILS, "test_binaries": BINARIES}.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    expected = {
        "test_transformer": ["passed", "passed", "error"],
        "test_translation_multi_simple_epoch_no_vepoch": ["passed", "passed", "passed"],
        "test_raw": ["failed", "failed", "failed"],
        "test_transformer_lm": ["passed", "failed", "failed"],
    }
    status, output = compare(tmp_path, "--pos", "cape", "relpos", "--tests", *expected)
    assert status == 1, output
    assert {test: cells(output, test) for test in expected} == expected
    assert [line for line in output.splitlines() if line.startswith("WORSE")] == [
        "WORSE test_transformer: --pos relpos error",
        "WORSE test_transformer_lm: --pos cape failed",
        "WORSE test_transformer_lm: --pos relpos failed",
    ]
    assert "cape_transformer_iwslt_de_en is broken" in output


def test_a_folder_that_is_no_checkout_is_named(tmp_path):
    missing = tmp_path / "tests" / "test_binaries.py"
    message = f"{missing} does not exist: give a checkout of fairseq\n"
    assert compare(tmp_path) == (1, message)
