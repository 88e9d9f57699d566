"""Run timm's own tests/test_models.py on our models, and compare with timm's stock models.

    python tools/run_timm_tests.py path/to/pytorch-image-models
    python tools/run_timm_tests.py path/to/pytorch-image-models --models '*_cape_*'

The file is copied to an empty folder, so that it tests the installed timm and not the checkout's.
Each of our models must pass the tests that its stock model passes, except those of TorchScript,
which we do not promise. If one fails, the exit status is 1.
"""

import argparse
import fnmatch
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

ENVIRONMENT = "TIMM_CHECKOUT"
# ours → what each of them is compared with; a twin with its own stock model
STOCK = {"vit_*": "vit_tiny_patch16_224", "naflexvit_*": "naflexvit_base_patch16_gap"}
# of timm's rotary modules cat, dinov3 and mixed at least one each, which have no tiny size
MODELS = ["*_tiny_*", "vit_small_patch16_dinov3_cape", "vit_small_patch16_rope_mixed_cape_224"]
LEFT_OUT = (
    "test_model_inference",  # these download published weights, which our models do not have
    "test_model_load_pretrained",
    "test_model_features_pretrained",
    "test_model_forward_torchscript",  # not promised
    "test_model_forward_fx_torchscript",
)
MARKS = ("base", "cfg", "torchscript", "features", "fxforward", "fxbackward", "timeout")
NOT_COLLECTED = "not collected"


class Comparison:
    """A pytest plugin that selects the tests of some models and records their outcomes.

    Attributes:
        outcomes: test → model → passed, skipped, failed or error.
    """

    def __init__(self, models: Iterable[str]) -> None:
        self.models = set(models)
        self.outcomes: dict[str, dict[str, str]] = defaultdict(dict)
        self._names: dict[str, tuple[str, str]] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        """Declare timm's marks; pytest-timeout, where installed, declares its own."""
        for mark in MARKS:
            config.addinivalue_line("markers", f"{mark}: used by timm's tests")

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Function]
    ) -> None:
        """Keep the tests that are parametrized by one of our models and are not in LEFT_OUT."""
        kept, left_out = [], []
        for item in items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            model = str(parameters.get("model_name", "")).split(".")[0]  # without its tag
            wanted = model in self.models and item.originalname not in LEFT_OUT
            (kept if wanted else left_out).append(item)
            self._names[item.nodeid] = (item.originalname, model)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of a model's tags and of a test's phases."""
        test, model = self._names[report.nodeid]
        outcome = report.outcome
        if report.when != "call" and outcome == "passed":
            return
        if report.when != "call" and outcome == "failed":
            outcome = "error"
        order = ["passed", "skipped", "failed", "error"]
        before = self.outcomes[test].get(model, "passed")
        self.outcomes[test][model] = max(before, outcome, key=order.index)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, print the comparison, return the exit status."""
    options = parse(arguments)
    source = find_tests(options.checkout)
    import timm

    import cape_plugins.timm

    ours = [
        name
        for module in (
            cape_plugins.timm.vision_transformer,
            cape_plugins.timm.naflexvit,
            cape_plugins.timm.eva,
        )
        for name in module.default_cfgs
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.models)
    ]
    if not ours:
        raise SystemExit(f"no model of cape-plugins matches {' '.join(options.models)}")
    stock = {name: stock_of(name) for name in ours}
    plugin = Comparison([*ours, *stock.values()])
    with tempfile.TemporaryDirectory() as folder:
        tests = shutil.copy(source, folder)
        flags = ["-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider", "-c", os.devnull]
        status = pytest.main([*flags, "--rootdir", folder, tests], plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"pytest did not run to its end: {pytest.ExitCode(status).name}")
    print(f"\ntimm {timm.__version__} at {Path(timm.__file__).parent}, {len(ours)} models of ours")
    if find_spec("pytest_timeout") is None:
        print("pytest-timeout is not installed: the tests' time limits were not applied")
    worse = compare(plugin.outcomes, stock)
    print("\n".join(["", *worse]) if worse else "\nours pass wherever the stock model passes")
    return 1 if worse else 0


def compare(outcomes: dict[str, dict[str, str]], stock: dict[str, str]) -> list[str]:
    """Print one line per test and stock model; return a line for each of ours that does worse."""
    worse = []
    for reference in dict.fromkeys(stock.values()):
        ours = [name for name, of in stock.items() if of == reference]
        print(f"\n{'test':45} {reference:28} ours")
        for test, found in outcomes.items():
            expected = found.get(reference, NOT_COLLECTED)
            results = {name: found.get(name, NOT_COLLECTED) for name in ours}
            if {expected, *results.values()} == {NOT_COLLECTED}:
                continue
            counts = sorted(Counter(results.values()).items())
            shown = ", ".join(f"{count} {result}" for result, count in counts)
            print(f"{test:45} {expected:28} {shown}")
            worse += [
                f"WORSE {test}: {name} {result}, {reference} {expected}"
                for name, result in results.items()
                if expected == "passed" != result
            ]
    return worse


def stock_of(name: str) -> str:
    """timm's model that one of ours is compared with."""
    from cape_plugins.timm.eva import TWINS

    return TWINS.get(name) or next(
        stock for pattern, stock in STOCK.items() if fnmatch.fnmatch(name, pattern)
    )


def find_tests(checkout: Path) -> Path:
    """tests/test_models.py of a checkout, or SystemExit."""
    path = checkout / "tests" / "test_models.py"
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: give a checkout of pytorch-image-models")
    return path.resolve()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkout",
        type=Path,
        nargs="?",
        default=os.environ.get(ENVIRONMENT),
        help=f"of pytorch-image-models (default: ${ENVIRONMENT})",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--models", nargs="+", default=MODELS, help="patterns (default: %(default)s)"
    )
    which.add_argument("--all", dest="models", action="store_const", const=["*"], help="every size")
    options = parser.parse_args(arguments)
    if options.checkout is None:
        parser.error(f"name a checkout of pytorch-image-models, or set {ENVIRONMENT}")
    return options


if __name__ == "__main__":
    sys.exit(main())
