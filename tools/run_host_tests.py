"""Run a host's own tests with our names in place of its own, and compare with the host.

    python tools/run_host_tests.py fairseq path/to/fairseq
    python tools/run_host_tests.py espnet path/to/espnet --pos cape alibi --sample 20

The checkout's tests are copied to an empty folder, so that they test the host that is installed.
What passes with the host's own models must pass with ours, but for what REFUSED lists. If
something else fails, the exit status is 1. For timm there is run_timm_tests.py.
"""

import argparse
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

STOCK = "stock"  # the host's own models
#: pos → options that it needs, by their names in the core
OPTIONS: dict[str, dict[str, Any]] = {
    "random": {"random_range": 60.0},
    "random_rope": {"random_range": 60.0},
    "pose_rope": {"pose_range": 60.0},
}
POSES = ("cape", "relpos", "cape_rope", "alibi")

#: host → the tests, and what of their names is taken (pytest's -k)
TESTS = {
    "fairseq": (
        ["tests/test_binaries.py", "tests/test_reproducibility.py"],
        "test_raw or test_update_freq or test_max_positions or test_generation or test_eval_bleu "
        "or (TestTranslation and test_transformer and not pointer) or test_transformer_lm "
        "or translation_multi_simple_epoch or mixture_of_experts or normformer or TestOptimizers "
        "or TestActivationCheckpointing or TestReproducibility",
    ),
    "espnet": (
        [
            *(
                f"test/espnet2/asr/encoder/test_{kind}_encoder.py"
                for kind in ("conformer", "branchformer", "e_branchformer", "transformer")
            ),
            "test/espnet2/bin/test_asr_inference.py",
        ],
        "not streaming and not EnhS2T and not whisper and not hugging_face",
    ),
    "transformers": (["tests/models/llama/test_modeling_llama.py"], "LlamaModelTest"),
}

#: host → what fails by design: a pattern of "test: its error" → why
REFUSED: dict[str, dict[str, str]] = {
    "fairseq": {
        "--cross-self-attention does not go with": "a pos that attends in a way of its own "
        "stands in place of fairseq's attention",
        "source scale cannot be counted": "the task has no training set when the model is built; "
        "cape asks for --source-scale",
        "turn a multiple of 2 channels": "the test's heads have one channel",
    },
    "espnet": {
        "invalid_layer_type|invalid_rel_pos_combination": "in place of ESPnet's "
        "attention and positions stands pos, and their options are left out",
        r"test_Encoder_invalid_type|-embed\]": "cape_transformer has no input_layer",
        "test_Speech2Text.*list index out of range": "untrained, and of one frame, it writes "
        "nothing; ESPnet's own does so with other weights",
        "documented_as_not_invariant": "ours is: padding changes nothing",
    },
    "transformers": {
        "rope_parameters with rope_type|rope_scaling_frequencies": "they scale transformers' own "
        "rotary positions",
        "relpos counts a sequence's tokens": "texts padded on the right, and continued behind the "
        "padding: positions are uneven",
        "random_range is an option of": "the test changes each field that ends with _range",
        "test_torch_save_load.*max": "the mark's tensors have no elements, and the test takes "
        "their maximum",
        "test_inherits_generation_mixin": "ours inherit it from transformers' Llama",
    },
}
#: options of ESPnet's own attention and positions, which a pos of ours refuses
LEFT_OUT = ("attention_layer_type", "selfattention_layer_type", "pos_enc_layer_type")
LEFT_OUT += ("rel_pos_type", "max_pos_emb_len")


def replace_fairseq(pos: str) -> None:
    """``--arch`` of the helpers by which its tests train."""
    import torch

    from tests import utils

    # fairseq's own checkpoints hold one, which torch ≥ 2.6 refuses to load
    torch.serialization.add_safe_globals([argparse.Namespace])
    ours = {"transformer": "cape_transformer", "transformer_lm": "cape_transformer_lm"}
    ours |= {"transformer_iwslt_de_en": "cape_transformer_iwslt_de_en"}
    others = {"fconv_iwslt_de_en": "transformer_iwslt_de_en", "fconv_lm": "transformer_lm"}
    sizes = "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 8 --decoder-embed-dim 8"
    flags = ["--pos", pos]
    for name, value in OPTIONS.get(pos, {}).items():
        flags += [f"--{name.replace('_', '-')}", str(value)]

    def with_ours(train: Callable[..., Any]) -> Callable[..., Any]:
        def call(data: str, arch: str, extra: Any = None, *rest: Any, **named: Any) -> Any:
            arch, extra = others.get(arch, arch), list(named.pop("extra_flags", extra) or [])
            if arch == "lstm":
                arch, extra = "transformer_iwslt_de_en", _without(extra, "--encoder-hidden-size")
                extra = _without(_without(extra, "--encoder-layers"), "--decoder-layers")
            small = sizes.split() if arch == "transformer_iwslt_de_en" else []
            if pos != STOCK:
                arch, small = ours.get(arch, arch), small + (flags if arch in ours else [])
            return train(data, arch, [*small, *extra], *rest, **named)

        return call

    utils.train_translation_model = with_ours(utils.train_translation_model)
    utils.train_language_model = with_ours(utils.train_language_model)


def _without(flags: list[str], name: str) -> list[str]:
    """Flags without one that has a value."""
    index = flags.index(name) if name in flags else len(flags)
    return flags[:index] + flags[index + 2 :]


def replace_espnet(pos: str) -> None:
    """The classes that its tests of encoders import, and the encoder of its recognition."""
    from importlib import import_module

    from espnet2.tasks.asr import ASRTask, encoder_choices

    from cape_plugins.espnet.relies import RELIES

    RELIES.check()  # before classes are replaced
    if pos != STOCK:
        for kind, module in (
            ("Conformer", "conformer"),
            ("Branchformer", "branchformer"),
            ("EBranchformer", "e_branchformer"),
            ("Transformer", "transformer"),
        ):
            cls = encoder_choices.classes[f"cape_{module}"]
            theirs = import_module(f"espnet2.asr.encoder.{module}_encoder")
            setattr(theirs, f"{kind}Encoder", _with_pos(cls, pos))
            encoder_choices.classes[module] = cls  # a test writes this name into a config of ours

    main = ASRTask.main.__func__

    def with_encoder(cls: Any, args: Any = None, cmd: Sequence[str] | None = None) -> Any:
        named = any(word.startswith("--encoder") for word in cmd or ())
        if cmd and not named and "--output_dir" in cmd:  # its default, an RNN
            conf = ["output_size=32", "num_blocks=3", "attention_heads=2", "linear_units=32"]
            name = "conformer"
            if pos != STOCK:
                name, conf = "cape_conformer", [*conf, f"pos={pos}", "frame_shift=0.008"]
                conf += [f"{name}={value}" for name, value in OPTIONS.get(pos, {}).items()]
            cmd = [*cmd, "--encoder", name, *(w for c in conf for w in ("--encoder_conf", c))]
        return main(cls, args=args, cmd=cmd)

    ASRTask.main = classmethod(with_encoder)


def _with_pos(cls: Any, pos: str) -> type:
    class Ours(cls):
        def __init__(self, input_size: int, **options: Any) -> None:
            options = {name: one for name, one in options.items() if name not in LEFT_OUT}
            if cls.fixed:  # cape_transformer has the paper's convolution
                options.pop("input_layer", None)
            super().__init__(input_size, pos=pos, **OPTIONS.get(pos, {}), **options)

    return Ours


def replace_transformers(pos: str, module: Any) -> None:
    """The classes of the tests for Llama."""
    if pos == STOCK:
        return
    from cape_plugins.transformers import models

    tester = module.LlamaModelTester
    tester.pos, tester.config_class = pos, models.CapeLlamaConfig
    tester.base_model_class, tester.causal_lm_class = (
        models.CapeLlamaModel,
        models.CapeLlamaForCausalLM,
    )
    tester.question_answering_class = models.CapeLlamaForQuestionAnswering
    tester.sequence_classification_class = models.CapeLlamaForSequenceClassification
    tester.token_classification_class = models.CapeLlamaForTokenClassification


class Run:
    """A pytest plugin: our names in place of the host's, a sample of the tests, their outcomes.

    Attributes:
        outcomes: test → ``passed``, ``skipped``, or its error.
    """

    def __init__(self, host: str, pos: str, sample: int) -> None:
        self.host, self.pos, self.sample = host, pos, sample
        self.outcomes: dict[str, str] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        """Replace what is imported by name before the tests are."""
        for mark in ("timeout", "execution_timeout"):
            config.addinivalue_line("markers", f"{mark}: used by the host's tests")
        if self.host == "fairseq":
            replace_fairseq(self.pos)
        elif self.host == "espnet":
            replace_espnet(self.pos)

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Of each parametrized test a sample, the same for each pos."""
        if self.host == "transformers" and items:
            replace_transformers(self.pos, items[0].module)
        of: dict[tuple[str, str], list[pytest.Function]] = {}
        for item in items:
            of.setdefault((str(item.path), item.originalname), []).append(item)
        for name, every in of.items():
            every.sort(key=lambda item: item.nodeid)
            of[name] = random.Random(7).sample(every, min(self.sample, len(every)))
        items[:] = [item for every in of.values() for item in every]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Say why tests cannot be imported, from which pytest goes no further."""
        if report.failed:
            print(report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test's worst phase."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcomes[report.nodeid] = str(crash.message if crash else report.longrepr)
        elif report.when == "call" or report.skipped:
            self.outcomes.setdefault(report.nodeid, report.outcome)


def run(host: str, folder: Path, pos: str, sample: int) -> dict[str, str]:
    """The tests' outcomes, in a process of its own."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    if host == "transformers" and not Path("src").exists():  # its tests import it from there too
        Path("src").mkdir()
        Path("src", host).symlink_to(Path(find_spec(host).origin).parent)
    files, wanted = TESTS[host]
    plugin = Run(host, pos, sample)
    flags = ["-q", "--tb=no", "-W", "ignore", "-p", "no:cacheprovider", "-c", os.devnull]
    status = pytest.main([*flags, "-k", wanted, "--rootdir", str(folder), *files], plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"pytest did not run to its end: {pytest.ExitCode(status).name}")
    return plugin.outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests with the host's own models and with ours; return the exit status."""
    options = parse(arguments)
    worse = []
    with tempfile.TemporaryDirectory() as folder:
        tests = options.checkout / TESTS[options.host][0][0].split("/")[0]
        if not tests.is_dir():
            raise SystemExit(f"{tests} does not exist: give a checkout of {options.host}")
        for one in (tests, options.checkout / "utils"):
            if one.is_dir():  # transformers' tests import from utils
                shutil.copytree(one, Path(folder, one.name))
        passing: list[str] = []
        for pos in (STOCK, *options.pos):
            with multiprocessing.get_context("spawn").Pool(1) as process:
                work = (options.host, Path(folder), pos, options.sample)
                outcomes = process.apply(run, work)
            if pos == STOCK:
                passing = [test for test, outcome in outcomes.items() if outcome == "passed"]
                print(f"\nthe host's own: {len(passing)} of {len(outcomes)} pass")
            else:
                failed = compare(passing, outcomes, REFUSED[options.host], pos)
                worse += [f"WORSE {pos} {line}" for line in failed]
    print("\n".join(["", *worse]) if worse else "\nours pass wherever the host's own passes")
    return 1 if worse else 0


def compare(
    passing: Sequence[str], outcomes: dict[str, str], refused: dict[str, str], pos: str
) -> list[str]:
    """Print what became of tests that pass with the host's own; return a line for each worse one.

    ``outcomes`` are ``passed``, ``skipped`` or an error. A test is refused where a key of
    ``refused`` is found in its name and error.
    """
    lines = [f"{test}: {outcomes.get(test)}" for test in passing if outcomes.get(test) != "passed"]
    reasons = [
        next((why for what, why in refused.items() if re.search(what, line, re.DOTALL)), "")
        for line in lines
    ]
    print(f"{pos}: {len(passing) - len(lines)} of {len(passing)} pass")
    for reason, count in Counter(filter(None, reasons)).items():
        print(f"    {count} refused: {reason}")
    return [line[:600] for line, reason in zip(lines, reasons, strict=True) if not reason]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host", choices=TESTS)
    parser.add_argument("checkout", type=Path, help="of the host's repository")
    parser.add_argument("--pos", nargs="+", default=POSES, help="default: %(default)s")
    parser.add_argument(
        "--sample", type=int, default=20, help="of each parametrized test (default: %(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
