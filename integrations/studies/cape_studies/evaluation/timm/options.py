"""The options of ``cape-timm-eval``."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from cape_studies.evaluation.options import RunOptions, Typed, once
from cape_studies.evaluation.timm.size_bins import STRATEGIES, Strategy

EXAMPLES = """
examples:
  cape-timm-eval -c last.pth.tar --data imagenet --resolutions 160 224 384 672 --out results
  cape-timm-eval -c cape=cape/last.pth.tar sinpos=sinpos/last.pth.tar --data imagenetv2 --out v2
  cape-timm-eval -c last.pth.tar --data imagenet --extent 1 ratio sqrt --resolutions 160 384
  cape-timm-eval -c last.pth.tar --data imagenet --size-bins --resolutions 224 --out bins
  cape-timm-eval -c last.pth.tar --resolutions 96 160 224 384 --throughput --data imagenet --out v
"""

#: a side of an image in pixels; one batch of larger ones fits no memory
Pixels = Annotated[int, Field(ge=1, le=2**14)]
Channel = Annotated[float, Field(ge=0, le=1)]
Interpolation = Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]


class TimmOptions(RunOptions):
    """Accuracy of image models over resolutions, with timm's data pipeline."""

    groups: ClassVar[dict[str, str]] = {
        "checkpoint": "models",
        "data": "test images",
        "resolutions": "conditions",
        "throughput": "throughput (figure 4)",
        **RunOptions.groups,
        "batch_size": "running",
    }

    checkpoint: Annotated[list[str], Typed("[NAME=]C", "-c")] = Field(
        description="train.py's .pth.tar, a state dict, .safetensors, local-dir:FOLDER, "
        "hf-hub:USER/NAME or a timm name with weights"
    )
    model: str | None = Field(
        None, description="timm's name of the architecture (default: the file's own record)"
    )
    model_kwargs: dict[str, Any] = Field({}, description="beside the file's own record")

    data: Annotated[list[str], Typed("DIR")] = Field([], description="folders of class folders")
    split: list[str] = Field(
        [], description="sub-folders, each a test (default: validation, or the folder itself)"
    )
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="crop / resized size (default: the model's, else 0.875)"
    )
    interpolation: Interpolation | None = Field(None, description="default: the model's")
    mean: list[Channel] = Field([], description="of pixels from 0 to 1 (default: the model's)")
    std: list[Channel] = Field([], description="the same")

    resolutions: Annotated[list[Pixels], Typed("R")] = Field(
        [], description="square image sizes in pixels (default: the one trained at)"
    )
    extent: Annotated[list[str], Typed("G")] = Field(
        [],
        description="the paper's γ (Table 6): ratio = R / train size, sqrt = its root, or a number "
        "(default: the model's own). No effect on models without it: abspos, nopos, timm's rotary",
    )
    train_size: PositiveInt | None = Field(
        None, description="for --extent (default: the checkpoint's)"
    )
    tta: bool = Field(False, description="average the logits over R - 32, R and R + 32")
    tta_step: PositiveInt = Field(32, description="instead of 32 pixels")
    size_bins: Annotated[list[Strategy] | None, Typed(empty=True)] = Field(
        None,
        description="score by the images' own sizes (appendix B.2) under these strategies "
        "(default: all)",
    )

    throughput: bool = Field(False, description="images per second at each resolution")
    max_batch: PositiveInt | None = Field(None, description="largest tried (default: 8192, CPU: 8)")
    runs: PositiveInt = Field(
        30, description="timed forwards, after as many to warm up; 30 as the authors"
    )

    batch_size: PositiveInt = Field(256, description="images at once, at most")
    workers: NonNegativeInt = Field(4, description="processes that load images")
    amp_dtype: Literal["float16", "bfloat16"] = Field("float16", description="of --amp")

    @model_validator(mode="after")
    def check(self) -> "TimmOptions":
        """Refuse what does not fit together."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, 1, 3):
                raise ValueError(f"--{name} takes 1 or 3 numbers, got {len(values)}")
        if 0 in self.std:
            raise ValueError("--std takes numbers above 0, got 0")
        for name in ("checkpoint", "data", "split", "resolutions", "extent", "size_bins"):
            once(getattr(self, name) or [], f"--{name.replace('_', '-')}")
        if self.tta and (small := [r for r in self.resolutions if r <= self.tta_step]):
            raise ValueError(
                f"--tta at resolution {small[0]} would need images of {small[0] - self.tta_step} "
                f"pixels: give a --tta-step below {small[0]}"
            )
        if not self.data and not self.throughput:
            raise ValueError("nothing to do: give --data DIR, --throughput or both")
        if self.items is not None and not self.data:
            raise ValueError("--items are images: give --data DIR")
        if self.strategies and (self.tta or self.throughput):
            raise ValueError("--size-bins goes with neither --tta nor --throughput: run them apart")
        if self.throughput and self.tta:
            raise ValueError("--throughput is that of one forward: leave out --tta")
        for rule in self.extent:
            self._check_extent(rule)
        return self

    def _check_extent(self, rule: str) -> None:
        if rule in ("ratio", "sqrt"):
            if self.strategies:
                raise ValueError(
                    f"--extent {rule} needs one resolution for all images: with --size-bins give "
                    "numbers"
                )
            return
        try:
            fits = 0 < float(rule) < math.inf
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"--extent takes ratio, sqrt or a number > 0, got {rule!r}")

    @property
    def strategies(self) -> tuple[str, ...]:
        """Of size bins; none without ``--size-bins``."""
        return STRATEGIES if self.size_bins == [] else tuple(self.size_bins or ())
