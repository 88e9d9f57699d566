"""The command line of :mod:`cape_plugins.fairseq.evaluate`, and what can be checked on it alone."""

import argparse
import math

import torch

from cape_plugins.fairseq.evaluation.stacking import MIN_TOKENS
from cape_plugins.fairseq.evaluation.testset import Runtime


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option has its default in its help."""
    parser = argparse.ArgumentParser(
        prog="cape-fairseq-eval",
        description="BLEU, loss by position and stacked test sets for fairseq's translation "
        "models; COMMAND --help has the options.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_bleu(commands)
    _add_loss(commands)
    _add_stack(commands)
    return parser


def _add_bleu(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "bleu",
        help="BLEU; of a folder, that of the checkpoint with the best validation BLEU",
        description="Translate a test set and score it. A model with several checkpoints is tested "
        "at the one with the best BLEU on the validation set.",
    )
    _add_models(command)
    add = command.add_argument_group("choice of the checkpoint").add_argument
    add("--valid-subset", default="valid", metavar="SUBSET", help="default: valid")
    add("--checkpoints", metavar="PATTERN", help="of files in folders (default: checkpoint*.pt)")
    add("--from-epoch", type=int, metavar="N", help="leave out earlier epochs of folders")
    add(
        "--select-by",
        choices=["bleu", "sacrebleu"],
        default="bleu",
        help="on the validation set (default: bleu, the tokenised one)",
    )
    add = command.add_argument_group("search, by fairseq's generator").add_argument
    add("--beam", type=int, default=4, metavar="N", help="default: 4 (en-de; en-fr 5)")
    add("--lenpen", type=float, default=0.6, metavar="P", help="default: 0.6 (en-de; en-fr 0.8)")
    add("--max-len-a", type=float, default=0.0, metavar="A", help="hypotheses end at A · source")
    add("--max-len-b", type=int, default=200, metavar="B", help="tokens + B (default: 0 and 200)")
    add = command.add_argument_group("text").add_argument
    add(
        *("--post-process", "--remove-bpe"),
        choices=["subword_nmt", "sentencepiece", "none"],
        default="subword_nmt",
        nargs="?",
        const="subword_nmt",
        help="what joins subwords (default: subword_nmt, '@@ ')",
    )
    add("--reference", metavar="FILE", help="raw lines of the test set, for sacreBLEU")
    add("--valid-reference", metavar="FILE", help="raw lines of the validation set")
    add(
        "--detokenizer",
        choices=["moses", "none"],
        help="before sacreBLEU (default: moses; none with sentencepiece)",
    )
    add("--hypotheses", metavar="FOLDER", help="that is there; gets NAME.SUBSET.txt, tokenised")
    _add_running(command)
    output = _add_output(command)
    output.add_argument(
        "--resume", action="store_true", help="keep the rows of an interrupted run's CSV"
    )


def _add_loss(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "loss",
        help="mean negative log loss at each position of the target",
        description="Score the references by teacher forcing: nats, EOS included, every sentence "
        "once. A folder stands for its checkpoint_best.pt; models of one NAME are seeds.",
    )
    _add_models(command)
    add = command.add_argument_group("ranges and picture").add_argument
    add(
        "--edges",
        type=int,
        nargs="+",
        default=[50, 100, 200, 300],
        metavar="N",
        help="last positions of the ranges in the table (default: 50 100 200 300)",
    )
    add("--trained-to", type=int, metavar="N", help="longest target in training, to be marked")
    add("--window", type=int, default=9, metavar="N", help="moving average (default: 9; 1: none)")
    add(
        "--min-sentences",
        type=int,
        default=10,
        metavar="N",
        help="leave positions that fewer reach out of the picture (default: 10)",
    )
    _add_running(command)
    output = _add_output(command)
    output.add_argument("--figure", metavar="FILE", help="losses over positions")


def _add_stack(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "stack",
        help="make a test set of long sentences out of consecutive ones",
        description="Join sentences until the target has enough tokens after BPE; apply BPE; "
        "binarise with the dictionaries of --data. What is left at the end is left off.",
    )
    add = command.add_argument
    add("--source", required=True, metavar="FILE", help="tokenised, before BPE")
    add("--target", required=True, metavar="FILE", help="tokenised, before BPE")
    bpe = command.add_mutually_exclusive_group(required=True)
    bpe.add_argument("--codes", nargs="+", metavar="FILE", help="subword-nmt: joint, or of each")
    bpe.add_argument("--sentencepiece", nargs="+", metavar="FILE", help="model: joint, or of each")
    add("--data", required=True, metavar="DIR", help="binarised data of the training")
    add("--out", required=True, metavar="DIR", help="made: binarised data with the subset test")
    add(
        "--min-tokens",
        type=int,
        default=MIN_TOKENS,
        metavar="N",
        help=f"of a target, without EOS (default: {MIN_TOKENS}, the paper's)",
    )
    add("--keep-remainder", action="store_true", help="as a shorter last sentence")
    add("--overwrite", action="store_true", help="replace a folder that this command made")


def _add_models(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", metavar="DATA", help="folder of binarised data")
    add = command.add_argument_group("models").add_argument
    add(
        "--model",
        nargs="+",
        required=True,
        metavar="[NAME=]PATH",
        help="each is one training: a checkpoint, a folder of them, or several with commas between "
        "them or by a pattern",
    )
    add("--gen-subset", default="test", metavar="SUBSET", help="to test on (default: test)")
    add("--user-dir", metavar="DIR", help="fairseq's: registers other models and tasks")
    add("--max-positions", type=int, metavar="N", help="tokens (default: the checkpoint's limits)")


def _add_running(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("running").add_argument
    add("--batch-size", type=int, default=128, metavar="N", help="sentences (default: 128)")
    add("--max-tokens", type=int, default=4096, metavar="N", help="with padding (default: 4096)")
    add("--workers", type=int, default=0, metavar="N", help="that load data (default: 0)")
    add("--device", help="default: cuda if there is one, else cpu")
    add("--fp16", action="store_true", help="weights in half precision (not on the CPU)")
    add("--bf16", action="store_true", help="weights in bfloat16")
    add("--amp", action="store_true", help="mixed precision: float16, with --bf16 bfloat16")


def _add_output(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    figure = command.prog.endswith("loss")
    group = command.add_argument_group("output")
    made = "PREFIX.csv, PREFIX.md" + (" and PREFIX.png" if figure else "")
    group.add_argument("--out", metavar="PREFIX", help=made)
    group.add_argument("--csv", metavar="FILE")
    group.add_argument("--markdown", metavar="FILE")
    group.add_argument("--overwrite", action="store_true", help="replace files that are there")
    return group


def check(args: argparse.Namespace) -> None:
    """Check what needs no file.

    Raises:
        ValueError: options that contradict each other or are out of range.
    """
    least_one = ("batch_size", "max_tokens", "beam", "max_positions", "min_tokens", "from_epoch")
    for name in (*least_one, "window", "min_sentences", "trained_to"):
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be ≥ 1, got {value}")
    for name in ("workers", "max_len_a", "max_len_b"):
        if getattr(args, name, 0) < 0:
            raise ValueError(f"--{name.replace('_', '-')} must be ≥ 0, got {getattr(args, name)}")
    if args.command == "stack":
        files = args.codes or args.sentencepiece
        if len(files) > 2:
            option = "--codes" if args.codes else "--sentencepiece"
            raise ValueError(f"{option} takes one file, or one each for source and target")
        return
    if args.fp16 and (args.bf16 or args.amp):
        raise ValueError("--fp16 goes with neither --bf16 nor --amp (which is float16 by itself)")
    if args.command == "bleu":
        if not math.isfinite(args.lenpen):
            raise ValueError(f"--lenpen must be a finite number, got {args.lenpen}")
        if args.resume and not (args.csv or args.out):
            raise ValueError("--resume continues a CSV: give --csv FILE or --out PREFIX")
        if args.resume and args.overwrite:
            raise ValueError("--resume keeps what --overwrite would replace: give one of them")
    if args.command == "loss":
        if args.edges and min(args.edges) < 1:
            raise ValueError(f"--edges must be ≥ 1, got {min(args.edges)}")
        if args.figure and not (args.csv or args.out):
            raise ValueError("--figure is drawn from the CSV: give --csv FILE or --out PREFIX too")


def runtime(args: argparse.Namespace) -> Runtime:
    """How models are run.

    Raises:
        ValueError: no such device, or float16 on the CPU.
    """
    name = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter: torch without CUDA
        said = str(error).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used: {said}") from error
    half = torch.bfloat16 if args.bf16 else torch.float16
    if device.type == "cpu" and half is torch.float16 and (args.fp16 or args.amp):
        raise ValueError("float16 is for GPUs: on the CPU give --bf16, with or without --amp")
    weights = half if (args.fp16 or args.bf16) and not args.amp else torch.float32
    autocast = half if args.amp else None
    return Runtime(device, weights, autocast, args.batch_size, args.max_tokens, args.workers)
