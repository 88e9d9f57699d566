"""The options of ``cape-fairseq-eval``'s three commands."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt

from cape_studies.evaluation.options import Options, RunOptions, Typed


class ModelOptions(RunOptions):
    """What the commands share that run models."""

    data: Annotated[Path, Typed("DATA", positional=True)] = Field(
        description="folder of binarised data"
    )
    model: Annotated[list[str], Typed("[NAME=]PATH")] = Field(
        description="each is one training: a checkpoint, or its folder"
    )
    gen_subset: Annotated[str, Typed("SUBSET")] = Field("test", description="to test on")
    batch_size: PositiveInt = Field(128, description="sentences")
    max_tokens: PositiveInt = Field(4096, description="of a batch, with padding")


class BleuOptions(ModelOptions):
    """Translate a test set and score it, with subword-nmt's subwords joined.

    A folder is tested at the checkpoint with the best BLEU on the subset valid.
    """

    beam: PositiveInt = Field(4, description="default: 4 (en-de; en-fr 5)")
    lenpen: FiniteFloat = Field(0.6, description="default: 0.6 (en-de; en-fr 0.8)")
    max_len_a: NonNegativeFloat = Field(0.0, description="hypotheses end at A · source")
    max_len_b: NonNegativeInt = Field(200, description="tokens + B (default: 0 and 200)")
    reference: Path | None = Field(None, description="raw lines of the test set, for sacreBLEU")


class LossOptions(ModelOptions):
    """Score the references by teacher forcing: nats, EOS included, every sentence once.

    A folder stands for its checkpoint_best.pt.
    """


class StackOptions(Options):
    """Join sentences until the target has enough tokens after BPE; apply BPE; binarise.

    The dictionaries are those of --data. What is left at the end is left off.
    """

    source: Path = Field(description="tokenised, before BPE")
    target: Path = Field(description="tokenised, before BPE")
    codes: list[Path] = Field(
        min_length=1, max_length=2, description="of subword-nmt: joint, or of source and target"
    )
    data: Annotated[Path, Typed("DIR")] = Field(description="binarised data of the training")
    out: Annotated[Path, Typed("DIR")] = Field(
        description="made: binarised data with the subset test"
    )
    min_tokens: PositiveInt = Field(
        300, description="of a target, without EOS (default: 300, the paper's)"
    )
