"""The options of ``cape-espnet-eval``."""

import math
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from cape_studies.options import EvaluationOptions, Pairs

SHORTEST_SECONDS = 1.0  # of a piece
Seconds = Annotated[float, Field(gt=SHORTEST_SECONDS, lt=math.inf)]
#: half of 10 ms to twice 10 ms: those that cape_fbank matches in training
Hop = Annotated[float, Field(ge=5, le=20)]


class EspnetOptions(EvaluationOptions):
    """Error rates of ESPnet's ASR models by greedy CTC decoding, or by ESPnet's own search."""

    model: list[str] = Field(
        min_length=1,
        description="[NAME=]PATH: the folder of asr_train, or a .pth with config.yaml beside it",
    )
    search: Pairs = Field(
        {}, description="decode by asr_inference, with these options of its own; none: greedy CTC"
    )
    data: list[str] = Field(
        min_length=1, description="[NAME=]DIR: a folder with Kaldi's wav.scp and text"
    )

    bins: list[PositiveFloat] = Field(
        [10.0, 15.0, 20.0],
        description="edges in seconds: durations between two edges get a score of their own",
    )
    segment: list[Seconds | Literal["whole"]] = Field(
        ["whole"],
        description="cut audio into pieces of so many seconds, and join their texts; whole: uncut",
    )
    hops: list[Hop] = Field(
        [], description="test these hops in ms, and measure throughput; none: the model's hop"
    )
