"""The options of ``cape-fairseq-eval``'s three commands."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt
from tyro.conf import Positional, subcommand

from cape_studies.evaluation.options import Options, RunOptions


class ModelOptions(RunOptions):
    """Of bleu and loss."""

    data: Positional[Path] = Field(description="folder of binarised data")
    model: list[str] = Field(
        min_length=1, description="[NAME=]PATH, each one training: a checkpoint, or its folder"
    )
    gen_subset: str = Field("test", description="to test on; bleu: or several, with commas")
    batch_size: PositiveInt = Field(128, description="sentences")
    max_tokens: PositiveInt = Field(4096, description="of a batch, with padding")


class BleuOptions(ModelOptions):
    """Translate and score; a folder at the checkpoint with the best BLEU on the subset valid."""

    beam: PositiveInt = Field(4, description="4 is the paper's of en-de; of en-fr 5")
    lenpen: FiniteFloat = Field(0.6, description="0.6 is the paper's of en-de; of en-fr 0.8")
    max_len_a: NonNegativeFloat = Field(0.0, description="hypotheses end at A · source")
    max_len_b: NonNegativeInt = Field(200, description="tokens + B")
    reference: Path | None = Field(None, description="raw lines of the test set, for sacreBLEU")


class LossOptions(ModelOptions):
    """Score references by teacher forcing, in nats; a folder by its checkpoint_best.pt."""


class StackOptions(Options):
    """Join sentences until the target has enough tokens after BPE; binarise as --data."""

    source: Path = Field(description="tokenised, before BPE")
    target: Path = Field(description="tokenised, before BPE")
    codes: Path = Field(description="of subword-nmt, of both languages")
    data: Path = Field(description="binarised data of the training")
    out: Path = Field(description="made: binarised data with the subset test")
    min_tokens: PositiveInt = Field(300, description="of a target, without EOS; 300 is the paper's")


Command = (
    Annotated[BleuOptions, subcommand("bleu")]
    | Annotated[LossOptions, subcommand("loss")]
    | Annotated[StackOptions, subcommand("stack")]
)
