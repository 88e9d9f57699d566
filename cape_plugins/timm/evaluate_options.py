"""The command line of :mod:`cape_plugins.timm.evaluate`, and what can be checked on it alone."""

import argparse
import math

from timm.utils import ParseKwargs
from timm.utils.distributed import world_info_from_env

from cape_plugins.timm.loading import Source
from cape_plugins.timm.size_bins import STRATEGIES

_EXAMPLES = """
examples:
  cape-timm-eval -c last.pth.tar --data imagenet --resolutions 160 224 384 672 --out results
  cape-timm-eval -c local-dir:vit --data imagenetv2-a --extent 1 ratio sqrt --resolutions 160 384
  cape-timm-eval -c last.pth.tar --data imagenet --size-bins --resolutions 224 --out bins
  cape-timm-eval -c last.pth.tar --resolutions 96 160 224 384 --throughput --data imagenet --out v
  torchrun --nproc-per-node 8 -m cape_plugins.timm.evaluate -c last.pth.tar --data imagenet --amp
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option has its default in its help."""
    parser = argparse.ArgumentParser(
        prog="cape-timm-eval",
        description="Accuracy of image models over resolutions, with timm's data pipeline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("models").add_argument
    add(
        *("-c", "--checkpoint"),
        nargs="+",
        required=True,
        metavar="C",
        help="train.py's .pth.tar, a state dict, .safetensors, local-dir:FOLDER, hf-hub:USER/NAME "
        "or a timm name with weights",
    )
    add(
        "--model",
        nargs="+",
        metavar="NAME",
        help="timm's name, one for all checkpoints or one each (default: the file's own record)",
    )
    add(
        "--model-kwargs",
        nargs="*",
        default={},
        action=ParseKwargs,
        metavar="K=V",
        help="arguments of the model, beside the file's own record of them",
    )
    add("--use-ema", action="store_true", help="take the checkpoint's averaged weights")

    add = parser.add_argument_group("test images").add_argument
    add("--data", nargs="+", default=[], metavar="DIR", help="folders of class folders")
    add("--split", help="sub-folder of --data (default: validation, or the folder itself)")
    add("--class-map", metavar="FILE", help="timm's class map: a .txt with one name a line")
    add("--allow-missing-classes", action="store_true", help="some classes may have no images")
    add("--crop-pct", type=float, help="crop / resized size (default: the model's, else 0.875)")
    add("--interpolation", help="bicubic, bilinear, … (default: the model's)")
    add("--mean", type=float, nargs="+", help="per channel (default: the model's)")
    add("--std", type=float, nargs="+", help="per channel (default: the model's)")

    add = parser.add_argument_group("conditions").add_argument
    add(
        "--resolutions",
        nargs="+",
        type=int,
        metavar="R",
        help="square image sizes in pixels (default: the one trained at)",
    )
    add(
        "--extent",
        nargs="+",
        metavar="G",
        help="the paper's γ (Table 6): ratio = R / train size, sqrt = its root, or a number "
        "(default: the model's own). No effect on models without it: abspos, rotary, nopos",
    )
    add("--train-size", type=int, help="in pixels, for --extent (default: the checkpoint's)")
    add("--tta", action="store_true", help="average the logits over R - 32, R and R + 32")
    add("--tta-step", type=int, default=32, metavar="N", help="instead of 32 pixels")
    add(
        "--size-bins",
        nargs="*",
        choices=STRATEGIES,
        help="score by the images' own sizes (appendix B.2) under these strategies (default: all)",
    )
    add(
        "--abspos-antialias",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="when a learnable position table is resized; timm does, the paper did not",
    )

    add = parser.add_argument_group("throughput (figure 4)").add_argument
    add("--throughput", action="store_true", help="images per second at each resolution")
    add("--max-batch", type=int, metavar="N", help="largest batch tried (default: 8192, CPU: 8)")
    add(
        "--runs",
        type=int,
        default=30,
        metavar="N",
        help="timed forwards, after as many to warm up (default: 30, the authors')",
    )

    add = parser.add_argument_group("running").add_argument
    add("--batch-size", type=int, default=256, metavar="N", help="per process (default: 256)")
    add("--workers", type=int, default=4, metavar="N", help="per process (default: 4)")
    add("--device", help="default: cuda if there is one, else cpu")
    add("--amp", action="store_true", help="mixed precision")
    add("--amp-dtype", choices=["float16", "bfloat16"], default="float16", help="default: float16")

    add = parser.add_argument_group("output").add_argument
    add("--out", metavar="PREFIX", help="PREFIX.csv, PREFIX.md, and PREFIX.png with --throughput")
    add("--csv", metavar="FILE")
    add("--markdown", metavar="FILE")
    add("--figure", metavar="FILE", help="accuracy against images per second (--throughput)")
    add("--overwrite", action="store_true", help="replace files that are there")
    return parser


def check(args: argparse.Namespace) -> None:
    """Complete the arguments and check what needs no file.

    Raises:
        ValueError: options that contradict each other or are out of range.
    """
    if args.size_bins == []:
        args.size_bins = list(STRATEGIES)
    for name in ("batch_size", "tta_step", "max_batch", "train_size", "runs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be ≥ 1, got {getattr(args, name)}")
    if args.workers < 0:
        raise ValueError(f"--workers must be ≥ 0, got {args.workers}")
    if args.crop_pct is not None and not 0 < args.crop_pct <= 1:
        raise ValueError(f"--crop-pct must be in (0, 1], got {args.crop_pct:g}")
    for name in ("mean", "std"):
        if getattr(args, name) is not None and len(getattr(args, name)) not in (1, 3):
            raise ValueError(f"--{name} takes 1 or 3 numbers, got {len(getattr(args, name))}")
    for size in args.resolutions or []:
        if size < 1:
            raise ValueError(f"--resolutions must be ≥ 1 pixel, got {size}")
        if args.tta and size <= args.tta_step:
            raise ValueError(
                f"--tta at resolution {size} would need images of {size - args.tta_step} pixels: "
                f"give a --tta-step below {size}"
            )
    if not args.data and not args.throughput:
        raise ValueError("nothing to do: give --data DIR, --throughput or both")
    _check_extent(args)
    if args.size_bins and (args.tta or args.throughput):
        raise ValueError("--size-bins goes with neither --tta nor --throughput: run them apart")
    if args.throughput and args.tta:
        raise ValueError("--throughput is that of one forward: leave out --tta")
    if args.throughput and world_info_from_env()[2] > 1:
        raise ValueError("--throughput is that of one device: run it without torchrun")
    if args.figure and not (args.throughput and args.data):
        raise ValueError("--figure needs --throughput and --data")
    if (args.figure or (args.out and args.throughput)) and not (args.csv or args.out):
        raise ValueError("--figure is drawn from the CSV: give --csv FILE or --out PREFIX too")


def _check_extent(args: argparse.Namespace) -> None:
    for rule in args.extent or []:
        if rule in ("ratio", "sqrt"):
            if args.size_bins:
                raise ValueError(
                    f"--extent {rule} needs one resolution for all images: with --size-bins give "
                    "numbers"
                )
            continue
        try:
            value = float(rule)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"--extent takes ratio, sqrt or a number > 0, got {rule!r}")


def sources(args: argparse.Namespace) -> list[Source]:
    """The models to load.

    Raises:
        ValueError: names for some checkpoints only.
    """
    names = args.model or [None]
    if len(names) == 1:
        names = names * len(args.checkpoint)
    if len(names) != len(args.checkpoint):
        raise ValueError(
            f"--model has {len(names)} names for {len(args.checkpoint)} checkpoints: give one for "
            "all or one each"
        )
    return [
        Source(checkpoint, name, args.model_kwargs, args.use_ema)
        for checkpoint, name in zip(args.checkpoint, names, strict=True)
    ]
