"""The options of ``cape-timm-eval``."""

from typing import Annotated, Literal

import tyro
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from cape_studies.evaluation.options import Pairs, RunOptions
from cape_studies.evaluation.timm.size_bins import STRATEGIES, Strategy

#: the paper's γ, or its rule in Table 6
Extent = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["ratio", "sqrt"]


class TimmOptions(RunOptions):
    """Accuracy (and speed) of timm's classifiers over resolutions, with timm's data pipeline.

    Paper: section 4.1, Tables 1, 5 and 6, figure 4, appendix B.2.
    """

    checkpoint: Annotated[list[str], tyro.conf.arg(aliases=["-c"])] = Field(
        min_length=1, description="[NAME=]FILE: train.py's, a plain state dict, or .safetensors"
    )
    model: str | None = Field(None, description="timm's name; none: the file's own record")
    model_kwargs: Pairs = Field({}, description="beside the file's own record")

    data: list[str] = Field(min_length=1, description="folders of class folders")
    split: list[str] = Field([], description="sub-folders; none: validation, or the folder itself")
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="crop / resized size; none: the model's, else 0.875"
    )

    resolutions: list[PositiveInt] = Field([], description="in pixels; none: the one trained at")
    extent: list[Extent] = Field(
        [],
        description="γ: ratio = R / train size, sqrt = its root, or a number; none: the model's "
        "own; no effect on models without it: abspos, nopos, timm's rotary",
    )
    tta: bool = Field(False, description="average the logits over R - 32, R and R + 32")
    tta_step: PositiveInt = Field(32, description="instead of 32 pixels")
    size_bins: list[Strategy] | None = Field(
        None,
        description="score by the images' own sizes (appendix B.2) under these strategies, or "
        "without a value under all",
    )

    throughput: bool = Field(False, description="images per second at each resolution")
    max_batch: PositiveInt | None = Field(None, description="largest tried; none: 8192, CPU: 8")
    runs: PositiveInt = Field(30, description="timed, after as many to warm up; 30: the authors'")

    batch_size: PositiveInt = Field(256, description="images at once, at most")
    workers: NonNegativeInt = Field(4, description="processes that load images")

    @model_validator(mode="after")
    def check(self) -> "TimmOptions":
        """Refuse what does not fit together."""
        if bool(self.strategies) + self.tta + self.throughput > 1:
            raise ValueError("--size-bins, --tta, --throughput do not go together: run them apart")
        if self.strategies and {"ratio", "sqrt"} & set(self.extent):
            raise ValueError("--extent ratio and sqrt need one size: with --size-bins give numbers")
        return self

    @property
    def strategies(self) -> tuple[str, ...]:
        """Of size bins; none without ``--size-bins``."""
        return STRATEGIES if self.size_bins == [] else tuple(self.size_bins or ())
