"""The options of ``cape-transformers-eval``."""

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self  # pydantic's

from cape_studies.evaluate.output import EvaluationOptions


class TextOptions(EvaluationOptions):
    """Score the last tokens of windows of text after contexts of several lengths, in nats."""

    model: list[str] = Field(min_length=1, description="[NAME=]FOLDER, one for each training")
    data: Path = Field(description="folder that cape_studies.data.tokens made")
    subset: str = Field("test", description="test or valid")
    length: list[PositiveInt] = Field([256, 512, 1024], description="tokens that a model sees")
    scored: PositiveInt = Field(
        64, description="last tokens of a window, which are scored at every length"
    )
    bins: list[PositiveInt] = Field(
        [64, 128, 256, 512, 1024], description="last positions of bins, at the greatest length"
    )
    windows: PositiveInt = Field(1000, description="most windows; each is of one file")
    rope_scaling: Literal["none", "linear", "dynamic", "yarn"] = Field(
        "none", description="transformers' own, of a model of its own, beyond --trained-length"
    )
    rope_factor: PositiveFloat | None = Field(
        None, description="its factor; none: length / --trained-length, and 1 for dynamic"
    )
    trained_length: PositiveInt = Field(256, description="tokens of a training sequence")
    batch_tokens: PositiveInt = Field(16384, description="most tokens of a batch")

    @model_validator(mode="after")
    def check_lengths(self) -> Self:
        """Refuse to score more tokens than the shortest input has."""
        if self.scored >= min(self.length):
            raise ValueError(f"--scored {self.scored} must be below the least --length")
        return self
