"""The options of ``cape-timm-eval``."""

from typing import Annotated, Literal

import tyro
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from cape_studies.evaluation.options import Pairs, RunOptions

#: the paper's γ, or its rule in Table 6
Extent = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["ratio", "sqrt"]


class TimmOptions(RunOptions):
    """Accuracy of timm's classifiers over resolutions, with timm's data pipeline.

    Paper: section 4.1, Tables 1, 3, 4 and 6.
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
    attention_logn: list[NonNegativeInt] = Field(
        [],
        description="logits of self-attention × log N / log of this, N in training, for models "
        "trained without; several: each; 0: off; none: as trained",
    )
    tta: bool = Field(False, description="average the logits over R - 32, R and R + 32")
    tta_step: PositiveInt = Field(32, description="instead of 32 pixels")

    batch_size: PositiveInt = Field(256, description="images at once, at most")
    workers: NonNegativeInt = Field(4, description="processes that load images")

    @model_validator(mode="after")
    def check(self) -> "TimmOptions":
        """Refuse N = 1, whose logarithm is 0."""
        if 1 in self.attention_logn:
            raise ValueError("--attention-logn takes tokens of a training sample, ≥ 2, or 0, got 1")
        return self
