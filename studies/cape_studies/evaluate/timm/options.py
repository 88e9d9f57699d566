"""The options of ``cape-timm-eval``."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from typing_extensions import Self  # pydantic's

from cape_studies.command import Pairs, Typed
from cape_studies.evaluate.output import EvaluationOptions

WARM_UP, RUNS = 5, 30  # forwards of a measurement of speed; paper: the mean of 30


class TimmOptions(EvaluationOptions):
    """Accuracy and speed of timm's classifiers over resolutions, with timm's data pipeline.

    Paper: section 4.1, Tables 3, 4 and 5, Figure 4. ``studies/data/score_images.py`` has Tables 1
    and 6.
    """

    checkpoint: Annotated[list[str], Typed(short="-c")] = Field(
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
        [], description="sub-folders of --data, such as validation; none: --data itself"
    )
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="size of the crop / size of the resized image; none: the model's, else 0.875",
    )

    resolutions: list[PositiveInt | Literal["original"]] = Field(
        [],
        description="sides of the test images in pixels; original: each image at its own size, in "
        "whole patches; none: the side of training",
    )
    bins: list[PositiveInt] = Field(
        [],
        description="accuracy by the shorter side of the images' own size too (Table 5): the last "
        "side in pixels of each bin but the last bin",
    )
    throughput: bool = Field(
        False,
        description="images per second too (Figure 4): the forward alone, --batch-size images on "
        f"--device, median of {RUNS} after {WARM_UP} to warm up; on a CPU per second of core time",
    )
    moved: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="cut images to squares and move each by this part of its side, to the four "
        "directions in turn; the room is filled with the mean of its edge",
    )
    upright: bool = Field(
        False, description="turn images as their EXIF says, which timm's own reader does not"
    )
    batch_size: PositiveInt = Field(256, description="largest number of images at once")
    workers: NonNegativeInt = Field(4, description="processes that load images")

    @model_validator(mode="after")
    def check_sizes(self) -> Self:
        """Refuse what needs one size for all images where each has its own."""
        if "original" in self.resolutions and self.throughput:
            raise ValueError("--throughput takes sides in pixels: leave out --resolutions original")
        return self
