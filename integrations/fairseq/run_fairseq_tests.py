"""Run fairseq's own tests of translation and language models on ours, and compare with its own.

    python integrations/fairseq/run_fairseq_tests.py path/to/fairseq
    python integrations/fairseq/run_fairseq_tests.py path/to/fairseq --pos cape --tests test_raw

From the checkout come TestTranslation and TestLanguageModeling of tests/test_binaries.py with
tests/utils.py, which train, validate, generate, interact and score through fairseq's own programs.
Both are copied to an empty folder, so that the installed fairseq is tested and not the checkout's.
The architecture of a test is replaced: by fairseq's Transformer, with sinusoids and with learned
positions, and by ours for each ``--pos``. Ours must pass what fairseq's passes, abspos what learned
positions pass; the exit status says so. Every test starts from the same random numbers.
"""

import argparse
import inspect
import os
import random
import shutil
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tabulate import tabulate

from cape_plugins.variants import get, names

VARIANTS = names(1)
STOCK = "fairseq's"
LEARNED = "learned"  # fairseq's with learned positions: abspos has a table, too
# what positions in self-attention refuse, saying so
REFUSED = "does not go with --pos"

# function of tests/utils.py that trains → fairseq's architecture, ours
TRAINERS = {
    "train_translation_model": ("transformer_iwslt_de_en", "cape_transformer_iwslt_de_en"),
    "train_language_model": ("transformer_lm", "cape_transformer_lm"),
}
# those that train another model are left out: their options are not the Transformer's
TESTS = {
    "TestTranslation": (
        "test_transformer",
        "test_raw",
        "test_update_freq",
        "test_max_positions",
        "test_generation",
        "test_eval_bleu",
        "test_transformer_cross_self_attention",
        "test_transformer_layerdrop",
        "test_mixture_of_experts",
        "test_translation_multi_simple_epoch_no_vepoch",
        "test_translation_multi_simple_epoch_src_tgt_dict_spec",
    ),
    "TestLanguageModeling": (
        "test_transformer_lm",
        "test_normformer_lm",
        "test_transformer_lm_with_adaptive_softmax",
    ),
}
NEEDED = ("tests", "examples/translation_moe")
SMALL = {"embed-dim": "8", "ffn-embed-dim": "16", "attention-heads": "2", "layers": "2"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, print the comparison, return the exit status."""
    options = parse(arguments)
    checkout = find_tests(options.checkout)
    import fairseq
    import numpy
    import torch

    import cape_plugins.fairseq

    if not hasattr(numpy, "compat"):  # fairseq-fixed's language models want it; gone in numpy 2
        numpy.compat = SimpleNamespace(long=int)
        print("numpy.compat.long stands in for what this numpy no longer has")
    without_fast_path()
    # fairseq's Transformer saves one with its options, which torch ≥ 2.6 refuses to load
    torch.serialization.add_safe_globals([argparse.Namespace])
    learned = [LEARNED] if any(map(is_learned, options.pos)) else []
    models = [STOCK, *learned, *options.pos]
    before = os.getcwd()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in NEEDED:
            shutil.copytree(checkout / name, Path(folder) / name)
        sys.path.insert(0, folder)
        os.chdir(folder)  # a test names a user directory relative to the checkout
        try:
            module = import_module("tests.test_binaries")
            outcomes = run_all(module, options.tests, models)
        finally:
            os.chdir(before)
            sys.path.remove(folder)
    version = getattr(fairseq, "__version__", "")
    print(f"\nfairseq {version} at {Path(fairseq.__file__).parent}, torch {torch.__version__}")
    print(f"cape-plugins at {Path(cape_plugins.fairseq.__file__).parents[1]}")
    print(f"{time.monotonic() - start:.0f} s\n")
    rows = [[test, *(found[name][0] for name in models)] for test, found in outcomes.items()]
    print(tabulate(rows, ["", *models], tablefmt="github"))
    worse = [
        f"WORSE {test}: --pos {name} {outcome}\n{reason[-2000:]}"
        for test, found in outcomes.items()
        for name, (outcome, reason) in found.items()
        if name in VARIANTS and outcome not in ("passed", "refused")
        if found[LEARNED if is_learned(name) else STOCK][0] == "passed"
    ]
    print("\n".join(["", *worse]) if worse else "\nours pass wherever fairseq's passes")
    return 1 if worse else 0


def is_learned(pos: str) -> bool:
    """Whether a variant has a table of positions, as fairseq's learned ones."""
    return get(pos).adds == "table"


def without_fast_path() -> None:
    """Switch off what fails on torch ≥ 1.13 in the layers of fairseq 0.12.2 (its issue 4899)."""
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase as Layer

    build = Layer.__init__

    def build_without(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.can_use_fastpath = False

    Layer.__init__ = build_without


def run_all(
    module: Any, tests: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, tuple[str, str]]]:
    """Test → STOCK, LEARNED or ``--pos`` → (outcome, why)."""
    outcomes: dict[str, dict[str, tuple[str, str]]] = {}
    for case, known in TESTS.items():
        for test in known:
            if test not in tests:
                continue
            if not hasattr(getattr(module, case), test):
                raise SystemExit(f"the checkout has no {case}.{test}")
            outcomes[test] = {}
            for name in names:
                start = time.monotonic()
                with replaced(module, name):
                    outcomes[test][name] = run_one(getattr(module, case)(test))
                seconds = time.monotonic() - start
                outcome, reason = outcomes[test][name]
                print(f"{test} {name}: {outcome}, {seconds:.0f} s", flush=True)
                if reason:
                    print(f"    {reason.splitlines()[-1]}", flush=True)
    return outcomes


def run_one(test: unittest.TestCase) -> tuple[str, str]:
    """(passed, failed, error, refused or skipped; the traceback)."""
    import torch

    result = unittest.TestResult()
    torch.manual_seed(0)
    random.seed(0)
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:
        warnings.simplefilter("ignore")
        with mock.patch("sys.stderr", nowhere):
            test.run(result)
    for outcome in ("error", "failed", "skipped"):
        found = {"error": result.errors, "failed": result.failures, "skipped": result.skipped}
        if found[outcome]:
            reason = found[outcome][0][1].rstrip()
            return ("refused" if REFUSED in reason.splitlines()[-1] else outcome), reason
    return "passed", ""


@contextmanager
def replaced(module: Any, name: str) -> Iterator[None]:
    """Train another architecture than the tests say, of small sizes."""
    with mock.patch.multiple(
        module, **{trainer: replace(getattr(module, trainer), name) for trainer in TRAINERS}
    ):
        yield


def replace(train: Callable[..., None], name: str) -> Callable[..., None]:
    """tests/utils.py's function with another architecture."""
    stock, ours = TRAINERS[train.__name__]
    sides = ("encoder", "decoder") if "translation" in train.__name__ else ("decoder",)

    def train_another(*args: Any, **kwargs: Any) -> None:
        call = inspect.signature(train).bind(*args, **kwargs)
        given = list(call.arguments.get("extra_flags") or [])
        for option, value in ((f"--{s}-{k}", v) for s in sides for k, v in SMALL.items()):
            if option not in given:
                given += [option, value]
        call.arguments["arch"] = stock
        if name == LEARNED:
            given += [f"--{side}-learned-pos" for side in sides]
        elif name != STOCK:
            call.arguments["arch"] = ours
            given += ["--pos", name]
            several = call.arguments.get("task") == "translation_multi_simple_epoch"
            if several and "source_scale" in get(name).options:
                given += ["--source-scale", "1"]  # several pairs of languages have no one ratio
        call.arguments["extra_flags"] = given
        train(*call.args, **call.kwargs)

    return train_another


def find_tests(checkout: Path) -> Path:
    """The checkout, absolute, or SystemExit."""
    for name in ("tests/test_binaries.py", "tests/utils.py", *NEEDED):
        if not (checkout / name).exists():
            raise SystemExit(f"{checkout / name} does not exist: give a checkout of fairseq")
    return checkout.resolve()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="of fairseq")
    parser.add_argument("--pos", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    tests = [test for known in TESTS.values() for test in known]
    parser.add_argument("--tests", nargs="+", choices=tests, default=tests, metavar="TEST")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
