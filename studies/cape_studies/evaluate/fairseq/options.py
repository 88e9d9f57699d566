"""The options of ``cape-fairseq-eval``."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)
from typing_extensions import Self  # pydantic's

from cape_studies.command import Typed
from cape_studies.evaluate.output import EvaluationOptions

OF_BLEU = "beam", "lenpen", "max_len_a", "max_len_b", "reference"


class FairseqOptions(EvaluationOptions):
    """Score translation models of fairseq.

    bleu: translate and score; a folder at the checkpoint with the best BLEU on the subset valid.
    loss: score references by teacher forcing, in nats; a folder by its checkpoint_best.pt.
    """

    score: Annotated[Literal["bleu", "loss"], Typed(bare=True)] = Field(
        description="what to score by"
    )
    data: Annotated[Path, Typed(bare=True)] = Field(description="folder of binarised data")
    model: list[str] = Field(
        min_length=1, description="[NAME=]PATH: a checkpoint or its folder, one for each training"
    )
    gen_subset: str = Field(
        "test", description="the subset to test; bleu takes several, with commas between them"
    )
    max_tokens: PositiveInt = Field(
        4096, description="largest number of tokens in a batch, padding included"
    )
    workers: NonNegativeInt = Field(0, description="processes that load data")
    beam: PositiveInt = Field(4, description="the paper has 4 for en-de and 5 for en-fr")
    lenpen: FiniteFloat = Field(0.6, description="the paper has 0.6 for en-de and 0.8 for en-fr")
    max_len_a: NonNegativeFloat = Field(
        0.0, description="a translation ends at A · (tokens of the source) + B tokens"
    )
    max_len_b: NonNegativeInt = Field(200, description="B, see --max-len-a")
    reference: Path | None = Field(
        None, description="file of the test set's raw lines, for sacreBLEU"
    )

    @model_validator(mode="after")
    def check_score(self) -> Self:
        """Refuse options of the search where nothing is searched."""
        if self.score == "loss" and (given := self.model_fields_set.intersection(OF_BLEU)):
            raise ValueError(f"--{min(given).replace('_', '-')} is of bleu, not of loss")
        return self
