"""The options of ``cape-timm-eval``."""

# ruff: noqa: RUF009 - option() makes a field
import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from timm.utils import ParseKwargs
from timm.utils.distributed import world_info_from_env

from cape_plugins.evaluation.options import RunOptions, option
from cape_plugins.evaluation.timm.loading import Source
from cape_plugins.evaluation.timm.size_bins import STRATEGIES
from cape_plugins.evaluation.timm.testset import check_normalisation

#: What timm's evaluation transforms take.
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")

#: Largest side of an image in pixels; one batch of larger ones fits no memory.
LARGEST = 2**14

EXAMPLES = """
examples:
  cape-timm-eval -c last.pth.tar --data imagenet --resolutions 160 224 384 672 --out results
  cape-timm-eval -c local-dir:vit --data imagenetv2-a --extent 1 ratio sqrt --resolutions 160 384
  cape-timm-eval -c last.pth.tar --data imagenet --size-bins --resolutions 224 --out bins
  cape-timm-eval -c last.pth.tar --resolutions 96 160 224 384 --throughput --data imagenet --out v
  torchrun --nproc-per-node 8 -m cape_plugins.evaluation.timm -c last.pth.tar --data imagenet --amp
"""


class ModelKwargs(ParseKwargs):
    """timm's NAME=VALUE arguments; what is none is refused."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """See argparse.Action."""
        for value in values:
            name, equals, _ = value.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(f"{option_string} takes NAME=VALUE, got {value!r}")
        super().__call__(parser, namespace, values, option_string)


@dataclass(frozen=True, kw_only=True)
class TimmOptions(RunOptions):
    """Accuracy of image models over resolutions, with timm's data pipeline."""

    groups: ClassVar[dict[str, str]] = {
        "checkpoint": "models",
        "data": "test images",
        "resolutions": "conditions",
        "throughput": "throughput (figure 4)",
        **RunOptions.groups,
        "batch_size": "running",
        "figure": "output",
    }

    checkpoint: Sequence[str] = option(
        "train.py's .pth.tar, a state dict, .safetensors, local-dir:FOLDER, hf-hub:USER/NAME or a "
        "timm name with weights",
        metavar="C",
        flags=("-c", "--checkpoint"),
    )
    model: Sequence[str] = option(
        "timm's name, one for all or one each (default: the file's own record)", (), "NAME"
    )
    model_kwargs: dict[str, Any] | None = option(
        "beside the file's own record", None, "K=V", nargs="*", action=ModelKwargs, type=str
    )
    other_positions: bool = option(
        "let --model and --model-kwargs name another variant, Δ, ε or λ than the checkpoint was "
        "trained with (γ and the image's size need no permission)",
        False,
    )
    use_ema: bool = option("take the checkpoint's averaged weights", False)

    data: Sequence[str] = option("folders of class folders", (), "DIR")
    split: str | None = option("sub-folder (default: validation, or the folder itself)", None)
    class_map: Path | None = option("timm's class map: a .txt with one name a line", None)
    allow_missing_classes: bool = option("some classes may have no images", False)
    crop_pct: float | None = option("crop / resized size (default: the model's, else 0.875)", None)
    interpolation: str | None = option("bicubic, bilinear, … (default: the model's)", None)
    mean: Sequence[float] = option("per channel (default: the model's)", ())
    std: Sequence[float] = option("per channel (default: the model's)", ())

    resolutions: Sequence[int] = option(
        "square image sizes in pixels (default: the one trained at)", (), "R", least=1
    )
    seq_lens: Sequence[int] = option(
        "each image at its own aspect ratio with at most N patches, as in timm's NaFlex loader",
        (),
        "N",
        least=1,
    )
    extent: Sequence[str] = option(
        "the paper's γ (Table 6): ratio = R / train size, sqrt = its root, or a number (default: "
        "the model's own). No effect on models without it: abspos, nopos, timm's rotary",
        (),
        "G",
    )
    train_size: int | None = option("for --extent (default: the checkpoint's)", None, least=1)
    tta: bool = option("average the logits over R - 32, R and R + 32", False)
    tta_step: int = option("instead of 32 pixels", 32, least=1)
    size_bins: Sequence[str] | None = option(
        "score by the images' own sizes (appendix B.2) under these strategies (default: all)",
        None,
        nargs="*",
        choices=STRATEGIES,
    )
    abspos_antialias: bool = option(
        "when a learnable position table is resized; timm does (the default), the paper did not",
        True,
        action=argparse.BooleanOptionalAction,
    )

    throughput: bool = option("images per second at each resolution", False)
    max_batch: int | None = option("largest tried (default: 8192, CPU: 8)", None, least=1)
    runs: int = option("timed forwards, after as many to warm up; 30 as the authors", 30, least=1)

    batch_size: int = option("per process", 256, least=1)
    workers: int = option("per process", 4, least=0)
    amp_dtype: str = option("", "float16", choices=["float16", "bfloat16"])

    figure: Path | None = option("accuracy against images per second, with --throughput", None)
    resume: bool = option(
        "keep the rows of an interrupted run's CSV; give the same options as then", False
    )

    @property
    def sources(self) -> list[Source]:
        """The models to load."""
        names: Sequence[str | None] = self.model or [None]
        names = [*names] * len(self.checkpoint) if len(names) == 1 else names
        return [
            Source(checkpoint, name, self.model_kwargs or {}, self.use_ema, self.other_positions)
            for checkpoint, name in zip(self.checkpoint, names, strict=True)
        ]

    @property
    def strategies(self) -> Sequence[str]:
        """Of size bins; none without ``--size-bins``."""
        return STRATEGIES if self.size_bins == [] else self.size_bins or ()

    @property
    def figure_path(self) -> Path | None:
        """Where the figure goes, if there is one."""
        return self.place(self.figure, ".png") if self.throughput and self.data else None

    def check(self) -> None:
        """See :class:`Options`."""
        if self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise ValueError(f"--crop-pct must be in (0, 1], got {self.crop_pct:g}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, 1, 3):
                raise ValueError(f"--{name} takes 1 or 3 numbers, got {len(values)}")
        check_normalisation(self.mean, self.std)
        if self.interpolation not in (None, *INTERPOLATIONS):
            raise ValueError(
                f"--interpolation takes {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}"
            )
        if large := [size for size in self.resolutions if size > LARGEST]:
            raise ValueError(f"--resolutions must be ≤ {LARGEST}, got {large[0]}")
        if self.tta and (small := [r for r in self.resolutions if r <= self.tta_step]):
            raise ValueError(
                f"--tta at resolution {small[0]} would need images of {small[0] - self.tta_step} "
                f"pixels: give a --tta-step below {small[0]}"
            )
        if len(self.model) not in (0, 1, len(self.checkpoint)):
            raise ValueError(
                f"--model has {len(self.model)} names for {len(self.checkpoint)} checkpoints: give "
                "one for all or one each"
            )
        self.check_items(self.checkpoint)
        if self.items is not None and not self.data:
            raise ValueError("--items are images: give --data DIR")
        if self.resume and self.csv_path is None:
            raise ValueError("--resume continues a CSV: give --csv FILE or --out PREFIX")
        if self.resume and self.overwrite:
            raise ValueError("--resume keeps what --overwrite would replace: give one of them")
        if self.resume and not self.data:
            raise ValueError("--resume keeps accuracies, not throughput: give --data DIR")
        if not self.data and not self.throughput:
            raise ValueError("nothing to do: give --data DIR, --throughput or both")
        for rule in self.extent:
            self._check_extent(rule)
        if self.seq_lens and (self.tta or self.throughput or self.strategies):
            raise ValueError(
                "--seq-lens goes with none of --tta, --throughput and --size-bins: run them apart"
            )
        if large := [length for length in self.seq_lens if length > LARGEST]:
            raise ValueError(f"--seq-lens must be ≤ {LARGEST}, got {large[0]}")
        if self.strategies and (self.tta or self.throughput):
            raise ValueError("--size-bins goes with neither --tta nor --throughput: run them apart")
        if self.throughput and self.tta:
            raise ValueError("--throughput is that of one forward: leave out --tta")
        if self.throughput and world_info_from_env()[2] > 1:
            raise ValueError("--throughput is that of one device: run it without torchrun")
        if self.figure and not (self.throughput and self.data):
            raise ValueError("--figure needs --throughput and --data")
        if self.figure and self.csv_path is None:
            raise ValueError("--figure is drawn from the CSV: give --csv FILE or --out PREFIX too")

    def _check_extent(self, rule: str) -> None:
        if rule in ("ratio", "sqrt"):
            if self.strategies or self.seq_lens:
                with_ = "--size-bins" if self.strategies else "--seq-lens"
                raise ValueError(
                    f"--extent {rule} needs one resolution for all images: with {with_} give "
                    "numbers"
                )
            return
        try:
            fits = 0 < float(rule) < math.inf
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"--extent takes ratio, sqrt or a number > 0, got {rule!r}")
