"""The options of ``cape-espnet-eval``."""

# ruff: noqa: RUF009 - option() makes a field
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar

from cape_plugins.evaluation.espnet import scoring
from cape_plugins.evaluation.espnet.segments import SHORTEST_SECONDS, SLACK_SECONDS
from cape_plugins.evaluation.options import RunOptions, once, option

WHOLE = "whole"

EXAMPLES = """
examples:
  cape-espnet-eval --model cape=exp/cape sinpos=exp/sinpos --data data/dev data/test --out wer
  cape-espnet-eval --model exp/cape/valid.cer_ctc.ave.pth --data data/talks --segment 10 15 20 30 45
  cape-espnet-eval --model exp/seq2seq --data data/dev --search beam_size=1 ctc_weight=0
  cape-espnet-eval --model cape=exp/cape --data data/dev --hops 5 6 8 10 12 16 20 --out hops
"""


@dataclass(frozen=True, kw_only=True)
class EspnetOptions(RunOptions):
    """Error rates of ESPnet's ASR models by greedy CTC decoding, or by ESPnet's own search."""

    groups: ClassVar[dict[str, str]] = {
        "model": "models and data",
        "bins": "conditions",
        **RunOptions.groups,
        "batch_seconds": "running",
        "no_plots": "output",
    }

    model: Sequence[str] = option(
        "folder of asr_train --output_dir, or a .pth with config.yaml beside",
        MISSING,
        "[NAME=]PATH",
    )
    checkpoint_name: str | None = option("in folders (default: the one valid.*.best.pth)", None)
    search: Sequence[str] = option(
        "options of asr_inference, whose search takes the place of greedy CTC decoding", (), "K=V"
    )
    data: Sequence[str] = option("folder with Kaldi's wav.scp and text", MISSING, "[NAME=]DIR")

    bins: Sequence[float] = option(
        "edges in seconds of the durations scored apart; none: no bins",
        (10.0, 15.0, 20.0),
        "S",
        nargs="*",
    )
    segment: Sequence[str] = option(
        f"cut audio into pieces of so many seconds, or '{WHOLE}'; texts are joined", (WHOLE,), "S"
    )
    segment_slack: float = option(
        "a piece may end so much earlier, where it is quietest; 0: at the sample",
        SLACK_SECONDS,
        "S",
    )
    hops: Sequence[float] = option(
        "of the frontend, in ms; measures throughput too (default: its own)", (), "MS"
    )
    throughput: bool = option("audio seconds per second, after a batch to warm up", False)

    batch_seconds: float = option("a batch times its longest utterance, at most", 120.0, "S")
    batch_size: int | None = option("utterances of a batch, at most", None)
    padding: str = option(
        "auto (default): where it changes nothing, with model: cape_asr and frontend: cape_fbank; "
        "never: only audio of the same length is batched",
        "auto",
        choices=["auto", "always", "never"],
    )
    amp_dtype: str = option("", "bfloat16", choices=["float16", "bfloat16"])

    no_plots: bool = option("draw no pictures", False)
    hypotheses: Path | None = option("gets what was recognised, in the format of text", None, "DIR")

    @property
    def lengths(self) -> list[float | None]:
        """Longest pieces in seconds, None for whole utterances."""
        return [None if one == WHOLE else float(one) for one in self.segment]

    @property
    def frame_hops(self) -> Sequence[float | None]:
        """Hops in milliseconds, None for the model's own."""
        return self.hops or [None]

    @property
    def timed(self) -> bool:
        """Whether throughput is measured."""
        return self.throughput or bool(self.hops)

    def hypotheses_of(
        self, model: str, test_set: str, length: float | None, hop: float | None
    ) -> Path | None:
        """The file that what was recognised under a condition is written to."""
        parts = [model, test_set]
        parts += [] if length is None else [f"{length:g}s"]
        parts += [] if hop is None else [f"{hop:g}ms"]
        name = ".".join(parts).replace("/", "_") + ".txt"
        return None if self.hypotheses is None else self.hypotheses / name

    def check(self) -> None:
        """See :class:`Options`."""
        self.check_items(self.model)
        scoring.check_edges(self.bins)
        for given in self.search:
            if not given.partition("=")[2]:
                raise ValueError(f"--search takes NAME=VALUE, got {given!r}")
        for name, value in (("seconds", self.batch_seconds), ("size", self.batch_size)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--batch-{name} must be > 0, got {value:g}")
        for given in self.segment:
            try:
                fits = given == WHOLE or SHORTEST_SECONDS < float(given) < math.inf
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(
                    f"--segment takes seconds > {SHORTEST_SECONDS:g}, or {WHOLE!r}, got {given!r}"
                )
        once(self.segment, "--segment")
        longest = min((one for one in self.lengths if one is not None), default=math.inf) / 2
        if not 0 <= self.segment_slack <= longest:
            raise ValueError(
                "--segment-slack must lie within 0 … half the shortest piece, got "
                f"{self.segment_slack:g}"
            )
        for hop in self.hops:
            if not 0 < hop < math.inf:
                raise ValueError(f"--hops must be milliseconds > 0, got {hop:g}")
        once(self.hops, "--hops")
