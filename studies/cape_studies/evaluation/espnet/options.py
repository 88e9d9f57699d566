"""The options of ``cape-espnet-eval``."""

import itertools
import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from cape_studies.evaluation.espnet.segments import SHORTEST_SECONDS
from cape_studies.evaluation.options import Different, Pairs, RunOptions

Seconds = Annotated[float, Field(gt=SHORTEST_SECONDS, lt=math.inf)]


class EspnetOptions(RunOptions):
    """Error rates of ESPnet's ASR models by greedy CTC decoding, or by ESPnet's own search."""

    model: list[str] = Field(
        min_length=1,
        description="[NAME=]PATH: folder of asr_train --output_dir, or a .pth with config.yaml "
        "beside",
    )
    checkpoint_name: str | None = Field(
        None, description="in folders; none: the one valid.*.best.pth"
    )
    search: Pairs = Field(
        {},
        description="options of asr_inference, whose search takes the place of greedy CTC decoding",
    )
    data: list[str] = Field(
        min_length=1, description="[NAME=]DIR: folder with Kaldi's wav.scp and text"
    )

    bins: list[float] = Field(
        [10.0, 15.0, 20.0],
        description="edges in seconds of the durations scored apart; none: no bins",
    )
    segment: Different[list[Seconds | Literal["whole"]]] = Field(
        ["whole"],
        description="cut audio into pieces of so many seconds, or 'whole'; texts are joined",
    )
    hops: Different[list[PositiveFloat]] = Field(
        [], description="of the frontend, in ms; measures throughput too; none: its own"
    )
    batch_seconds: PositiveFloat = Field(
        120.0,
        description="a batch times its longest utterance, at most, where padding changes nothing: "
        "with model: cape_asr and frontend: cape_fbank; others are decoded one by one",
    )
    hypotheses: Path | None = Field(
        None, description="folder that gets what was recognised, in the format of text"
    )

    @model_validator(mode="after")
    def check(self) -> "EspnetOptions":
        """Refuse edges that do not increase, and a folder that is there."""
        if any(not a < b for a, b in itertools.pairwise([0.0, *self.bins, math.inf])):
            shown = " ".join(f"{edge:g}" for edge in self.bins)
            raise ValueError(f"--bins must be seconds > 0 that increase, got {shown}")
        if self.hypotheses is not None and self.hypotheses.exists() and not self.overwrite:
            raise ValueError(f"{self.hypotheses} exists: choose another name or give --overwrite")
        return self
