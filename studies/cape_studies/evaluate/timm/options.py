"""The options of ``cape-timm-eval``."""

from typing import Annotated, Literal

import tyro
from pydantic import Field, NonNegativeInt, PositiveInt

from cape_studies.options import Pairs, RunOptions

#: the paper's γ, or one of its rules in Table 6
Extent = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["ratio", "sqrt"]


class TimmOptions(RunOptions):
    """Accuracy of timm's classifiers over resolutions, with timm's data pipeline.

    Paper: section 4.1, Tables 1, 3, 4 and 6.
    """

    checkpoint: Annotated[list[str], tyro.conf.arg(aliases=["-c"])] = Field(
        min_length=1,
        description="[NAME=]FILE: train.py's checkpoint, a state dict, or a .safetensors file",
    )
    model: str | None = Field(
        None, description="the model's name in timm; none: the name that the file has"
    )
    model_kwargs: Pairs = Field(
        {}, description="options of the model, in addition to those that the file has"
    )

    data: list[str] = Field(min_length=1, description="folders that hold a folder for each class")
    split: list[str] = Field(
        [],
        description="sub-folders of --data; none: validation if it is there, else --data itself",
    )
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="size of the crop / size of the resized image; none: the model's, else 0.875",
    )

    resolutions: list[PositiveInt] = Field(
        [], description="sides of the test images in pixels; none: the side of training"
    )
    extent: list[Extent] = Field(
        [],
        description="γ: a number, ratio (R / side of training) or sqrt (its root); none: the "
        "model's. It changes nothing in models without γ: abspos, nopos, timm's rotary models",
    )
    moved: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="cut images to squares and move each by this part of its side, to the four "
        "directions in turn; the room is filled with the mean of its edge",
    )
    tta: bool = Field(False, description="average the logits of resolutions R - 32, R and R + 32")
    tta_step: PositiveInt = Field(32, description="pixels between the resolutions of --tta")

    batch_size: PositiveInt = Field(256, description="largest number of images at once")
    workers: NonNegativeInt = Field(4, description="processes that load images")
