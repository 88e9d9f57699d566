"""The options of ``cape-fairseq-eval``'s three commands."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt

from cape_studies.options import CommandOptions, EvaluationOptions, Positional


class ModelOptions(EvaluationOptions):
    """Of bleu and loss."""

    data: Annotated[Path, Positional()] = Field(description="folder of binarised data")
    model: list[str] = Field(
        min_length=1, description="[NAME=]PATH: a checkpoint or its folder, one for each training"
    )
    gen_subset: str = Field(
        "test", description="the subset to test; bleu takes several, with commas between them"
    )
    max_tokens: PositiveInt = Field(
        4096, description="largest number of tokens in a batch, padding included"
    )


class BleuOptions(ModelOptions):
    """Translate and score; a folder at the checkpoint with the best BLEU on the subset valid."""

    beam: PositiveInt = Field(4, description="the paper has 4 for en-de and 5 for en-fr")
    lenpen: FiniteFloat = Field(0.6, description="the paper has 0.6 for en-de and 0.8 for en-fr")
    max_len_a: NonNegativeFloat = Field(
        0.0, description="a translation ends at A · (tokens of the source) + B tokens"
    )
    max_len_b: NonNegativeInt = Field(200, description="B, see --max-len-a")
    reference: Path | None = Field(
        None, description="file of the test set's raw lines, for sacreBLEU"
    )


class LossOptions(ModelOptions):
    """Score references by teacher forcing, in nats; a folder by its checkpoint_best.pt."""


class StackOptions(CommandOptions):
    """Join sentences until the target has enough tokens after BPE; binarise as --data."""

    source: Path = Field(description="tokenised text of the source, before BPE")
    target: Path = Field(description="tokenised text of the target, before BPE")
    codes: Path = Field(description="codes of subword-nmt, for both languages")
    data: Path = Field(description="binarised data of the training, for its dictionaries")
    out: Path = Field(description="folder to make: binarised data with the subset test")
    min_tokens: PositiveInt = Field(
        300, description="least number of tokens of a target, without EOS; the paper has 300"
    )


#: the first word of the command → its options
COMMANDS = {"bleu": BleuOptions, "loss": LossOptions, "stack": StackOptions}
