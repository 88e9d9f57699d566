"""The command line of :mod:`cape_plugins.espnet.evaluate`, and what can be checked on it alone."""

import argparse
import math

from cape_plugins.espnet.evaluation import scoring
from cape_plugins.espnet.evaluation.segments import SHORTEST_SECONDS, SLACK_SECONDS

WHOLE = "whole"

_EXAMPLES = """
examples:
  cape-espnet-eval --model cape=exp/cape sinpos=exp/sinpos --data data/dev data/test --out wer
  cape-espnet-eval --model exp/cape/valid.cer_ctc.ave.pth --data data/talks --segment 10 15 20 30 45
  cape-espnet-eval --model cape=exp/cape --data data/dev --hops 5 6 8 10 12 16 20 --out hops
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option has its default in its help."""
    parser = argparse.ArgumentParser(
        prog="cape-espnet-eval",
        description="Word and character error rates of ESPnet's ASR models by greedy CTC decoding.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("models and data").add_argument
    add(
        "--model",
        nargs="+",
        required=True,
        metavar="[NAME=]PATH",
        help="folder of asr_train --output_dir, or a .pth with config.yaml beside",
    )
    add(
        "--checkpoint-name",
        metavar="FILE",
        help="in the folders of --model (default: the one valid.*.best.pth that is there)",
    )
    add(
        "--data",
        nargs="+",
        required=True,
        metavar="[NAME=]DIR",
        help="folder with wav.scp and text in Kaldi's format",
    )

    add = parser.add_argument_group("conditions").add_argument
    add(
        "--bins",
        nargs="*",
        type=float,
        default=[10.0, 15.0, 20.0],
        metavar="S",
        help="edges in seconds of the durations scored apart (default: 10 15 20; none: no bins)",
    )
    add(
        "--segment",
        nargs="+",
        metavar="S",
        help=f"cut the audio into consecutive pieces of so many seconds, or '{WHOLE}'; their texts "
        f"are joined (default: {WHOLE})",
    )
    add(
        "--segment-slack",
        type=float,
        default=SLACK_SECONDS,
        metavar="S",
        help="a piece may end so much earlier, where it is quietest (default: "
        f"{SLACK_SECONDS:g} s; 0: cut at the sample)",
    )
    add(
        "--hops",
        nargs="+",
        type=float,
        metavar="MS",
        help="of the frontend, in milliseconds; measures throughput too (default: its own)",
    )
    add(
        "--throughput",
        action="store_true",
        help="seconds of audio per second of computing, after one batch to warm up",
    )

    add = parser.add_argument_group("running").add_argument
    add(
        "--batch-seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="a batch times its longest utterance lasts at most so long (default: 120)",
    )
    add("--batch-size", type=int, metavar="N", help="utterances of a batch, at most")
    add(
        "--padding",
        choices=["auto", "always", "never"],
        default="auto",
        help="auto (default): with model: cape_asr and frontend: cape_fbank, where it changes "
        "nothing; never: only audio of the same length is batched",
    )
    add("--workers", type=int, default=0, metavar="N", help="processes reading audio (default: 0)")
    add("--device", help="default: cuda if there is one, else cpu")
    add("--amp", action="store_true", help="mixed precision")
    add(
        "--amp-dtype", choices=["float16", "bfloat16"], default="bfloat16", help="default: bfloat16"
    )

    add = parser.add_argument_group("output").add_argument
    add("--out", metavar="PREFIX", help="PREFIX.csv, PREFIX.md and the pictures PREFIX.*.png")
    add("--no-plots", action="store_true", help="draw no pictures")
    add("--hypotheses", metavar="DIR", help="write what was recognised, in the format of text")
    add("--overwrite", action="store_true", help="replace files that are there")
    return parser


def check(args: argparse.Namespace) -> None:
    """Complete the arguments and check what needs no file.

    ``segment`` becomes a list of seconds, None for whole utterances; ``hops`` a list of
    milliseconds, None for the model's own.

    Raises:
        ValueError: options out of range.
    """
    scoring.check_edges(args.bins)
    for name in ("batch_seconds", "batch_size"):
        value = getattr(args, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"--{name.replace('_', '-')} must be > 0, got {value:g}")
    if args.workers < 0:
        raise ValueError(f"--workers must be ≥ 0, got {args.workers}")
    args.segment = [_segment(one) for one in _once(args.segment or [WHOLE], "--segment")]
    lengths = [seconds for seconds in args.segment if seconds is not None]
    if not 0 <= args.segment_slack <= min(lengths, default=math.inf) / 2:
        raise ValueError(
            "--segment-slack must lie within 0 … half the shortest piece, got "
            f"{args.segment_slack:g}"
        )
    for hop in args.hops or []:
        if not (math.isfinite(hop) and hop > 0):
            raise ValueError(f"--hops must be milliseconds > 0, got {hop:g}")
    args.throughput = args.throughput or bool(args.hops)
    args.hops = _once(args.hops, "--hops") if args.hops else [None]


def _once(values: list, option: str) -> list:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{option} has {value} twice")
    return values


def _segment(given: str) -> float | None:
    if given == WHOLE:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > SHORTEST_SECONDS):
        raise ValueError(
            f"--segment takes seconds > {SHORTEST_SECONDS:g}, or {WHOLE!r}, got {given!r}"
        )
    return seconds
