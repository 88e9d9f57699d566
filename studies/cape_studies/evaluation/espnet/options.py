"""The options of ``cape-espnet-eval``."""

import itertools
import math
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from cape_studies.evaluation.options import Pairs, RunOptions

SHORTEST_SECONDS = 1.0  # of a piece
Seconds = Annotated[float, Field(gt=SHORTEST_SECONDS, lt=math.inf)]


class EspnetOptions(RunOptions):
    """Error rates of ESPnet's ASR models by greedy CTC decoding, or by ESPnet's own search."""

    model: list[str] = Field(
        min_length=1, description="[NAME=]PATH: asr_train's folder, or a .pth beside config.yaml"
    )
    search: Pairs = Field({}, description="by asr_inference with its options; none: greedy CTC")
    data: list[str] = Field(min_length=1, description="[NAME=]DIR with Kaldi's wav.scp and text")

    bins: list[float] = Field(
        [10.0, 15.0, 20.0], description="edges in seconds of the durations scored apart"
    )
    segment: list[Seconds | Literal["whole"]] = Field(
        ["whole"], description="pieces of so many seconds, whose texts are joined, or whole"
    )
    hops: list[PositiveFloat] = Field([], description="in ms, with throughput; none: the model's")
    batch_seconds: PositiveFloat = Field(
        120.0,
        description="a batch times its longest utterance, at most, where padding changes nothing: "
        "with model: cape_asr and frontend: cape_fbank; others are decoded one by one",
    )

    @model_validator(mode="after")
    def check(self) -> "EspnetOptions":
        """Refuse edges that do not increase."""
        if any(not a < b for a, b in itertools.pairwise([0.0, *self.bins, math.inf])):
            shown = " ".join(f"{edge:g}" for edge in self.bins)
            raise ValueError(f"--bins must be seconds > 0 that increase, got {shown}")
        return self
