"""The options of ``cape-fairseq-eval``'s three commands."""

# ruff: noqa: RUF009 - option() makes a field
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cape_plugins.evaluation.fairseq.positions_curve import CurveOptions
from cape_plugins.evaluation.fairseq.stacking import MIN_TOKENS
from cape_plugins.evaluation.options import Options, RunOptions, option


@dataclass(frozen=True, kw_only=True)
class ModelOptions(RunOptions):
    """What the commands share that run models."""

    groups: ClassVar[dict[str, str]] = {
        "model": "models",
        **RunOptions.groups,
        "batch_size": "running",
    }

    data: Path = option("folder of binarised data", metavar="DATA", flags=("data",))
    model: Sequence[str] = option(
        "each is one training: a checkpoint, a folder, or several with commas or by a pattern",
        metavar="[NAME=]PATH",
    )
    gen_subset: str = option("to test on", "test", "SUBSET")
    user_dir: Path | None = option("fairseq's: registers other models and tasks", None, "DIR")
    max_positions: int | None = option("tokens (default: the checkpoint's limits)", None, least=1)

    batch_size: int = option("sentences", 128, least=1)
    max_tokens: int = option("with padding", 4096, least=1)
    fp16: bool = option("weights in half precision (not on the CPU)", False)
    bf16: bool = option("weights in bfloat16", False)
    amp: bool = option("mixed precision: float16, with --bf16 bfloat16", False)

    def check(self) -> None:
        """See :class:`Options`."""
        self.check_items(self.model)
        if self.fp16 and (self.bf16 or self.amp):
            raise ValueError(
                "--fp16 goes with neither --bf16 nor --amp (which is float16 by itself)"
            )
        if self.user_dir is not None and not self.user_dir.is_dir():
            raise ValueError(f"--user-dir: no such folder: {self.user_dir}")


@dataclass(frozen=True, kw_only=True)
class BleuOptions(ModelOptions):
    """Translate a test set and score it.

    A model with several checkpoints is tested at the one with the best BLEU on the validation set.
    """

    groups: ClassVar[dict[str, str]] = ModelOptions.groups | {
        "valid_subset": "choice of the checkpoint",
        "beam": "search, by fairseq's generator",
        "post_process": "text",
        "resume": "output",
    }

    valid_subset: str = option("", "valid", "SUBSET")
    checkpoints: str | None = option("in folders (default: checkpoint*.pt)", None, "PATTERN")
    from_epoch: int | None = option("leave out earlier epochs of folders", None, least=1)
    select_by: str = option("on the validation set", "bleu", choices=["bleu", "sacrebleu"])

    beam: int = option("default: 4 (en-de; en-fr 5)", 4, least=1)
    lenpen: float = option("default: 0.6 (en-de; en-fr 0.8)", 0.6, "P")
    max_len_a: float = option("hypotheses end at A · source", 0.0, "A", least=0)
    max_len_b: int = option("tokens + B (default: 0 and 200)", 200, "B", least=0)

    post_process: str = option(
        "what joins subwords (default: subword_nmt, '@@ ')",
        "subword_nmt",
        flags=("--post-process", "--remove-bpe"),
        choices=["subword_nmt", "sentencepiece", "none"],
        nargs="?",
        const="subword_nmt",
    )
    reference: Path | None = option("raw lines of the test set, for sacreBLEU", None)
    valid_reference: Path | None = option("raw lines of the validation set", None)
    detokenizer: str | None = option(
        "for sacreBLEU (default: moses; none with sentencepiece)", None, choices=["moses", "none"]
    )
    hypotheses: Path | None = option("that exists; gets NAME.SUBSET.txt, tokenised", None, "FOLDER")

    resume: bool = option("keep the rows of an interrupted run's CSV", False)

    def check(self) -> None:
        """See :class:`Options`."""
        super().check()
        if not math.isfinite(self.lenpen):
            raise ValueError(f"--lenpen must be a finite number, got {self.lenpen}")
        if self.resume and self.csv_path is None:
            raise ValueError("--resume continues a CSV: give --csv FILE or --out PREFIX")
        if self.resume and self.overwrite:
            raise ValueError("--resume keeps what --overwrite would replace: give one of them")

    def reference_of(self, subset: str) -> Path | None:
        """File with a subset's raw lines."""
        return self.reference if subset == self.gen_subset else self.valid_reference

    def hypotheses_of(self, model: str) -> Path | None:
        """File that a model's translations go to."""
        name = f"{model.replace('/', '_')}.{self.gen_subset}.txt"
        return None if self.hypotheses is None else self.hypotheses / name


@dataclass(frozen=True, kw_only=True)
class LossOptions(CurveOptions, ModelOptions):
    """Score the references by teacher forcing: nats, EOS included, every sentence once.

    A folder stands for its checkpoint_best.pt; models of one NAME are seeds.
    """

    groups: ClassVar[dict[str, str]] = ModelOptions.groups | {
        "window": "ranges and picture",
        "edges": "ranges and picture",
        "figure": "output",
    }

    edges: Sequence[int] = option("ends of the table's ranges", (50, 100, 200, 300), least=1)
    figure: Path | None = option("losses over positions; PREFIX.png with --out", None)

    def check(self) -> None:
        """See :class:`Options`."""
        super().check()
        if self.figure and self.csv_path is None:
            raise ValueError("--figure is drawn from the CSV: give --csv FILE or --out PREFIX too")

    @property
    def figure_path(self) -> Path | None:
        """Where the picture goes."""
        return self.place(self.figure, ".png")


@dataclass(frozen=True, kw_only=True)
class StackOptions(Options):
    """Join sentences until the target has enough tokens after BPE; apply BPE; binarise.

    The dictionaries are those of --data. What is left at the end is left off.
    """

    source: Path = option("tokenised, before BPE")
    target: Path = option("tokenised, before BPE")
    codes: Sequence[Path] = option("subword-nmt: joint, or of each", ())
    sentencepiece: Sequence[Path] = option("model: joint, or of each", ())
    data: Path = option("binarised data of the training", metavar="DIR")
    out: Path = option("made: binarised data with the subset test", metavar="DIR")
    min_tokens: int = option("of a target, without EOS; the paper's", MIN_TOKENS, least=1)
    keep_remainder: bool = option("as a shorter last sentence", False)
    overwrite: bool = option("replace a folder that this command made", False)

    def check(self) -> None:
        """See :class:`Options`."""
        if bool(self.codes) == bool(self.sentencepiece):
            raise ValueError("give either --codes or --sentencepiece: what cut the training's text")
        for name, files in (("codes", self.codes), ("sentencepiece", self.sentencepiece)):
            if len(files) > 2:
                raise ValueError(f"--{name} takes one file, or one each for source and target")
