"""The options of ``cape-espnet-eval``."""

from pydantic import Field, PositiveFloat

from cape_studies.command import Pairs
from cape_studies.evaluate.output import EvaluationOptions


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
