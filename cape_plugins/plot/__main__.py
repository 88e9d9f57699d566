"""The command line of the pictures; the drawing is in its neighbours, one picture a file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cape_plugins.plot import canvas


def main(argv: Sequence[str] | None = None) -> None:
    """Draw one picture; ends with status 2 and one line on stderr if something is wrong."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        canvas.check(args.out, args.overwrite)
        args.draw(args)
    except (ValueError, ImportError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(args.out)


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option has its default in its help."""
    parser = argparse.ArgumentParser(
        prog="python -m cape_plugins.plot",
        description="Draw a picture; PICTURE --help has its options.",
    )
    commands = parser.add_subparsers(dest="picture", required=True, metavar="PICTURE")

    command = commands.add_parser(
        "embeddings",
        help="components of abspos, sinpos and CAPE at several image sizes",
        description="Every 20th component of the embeddings of an image's patches.",
    )
    command.set_defaults(draw=_draw_embeddings)
    add = command.add_argument
    add("--resolutions", type=int, nargs="+", default=[160, 224, 384], metavar="R")
    add("--every", type=int, default=20, metavar="N", help="components apart (default: 20)")
    add("--dim", type=int, default=768, help="channels (default: 768, or the checkpoint's)")
    add("--patch", type=int, default=16, help="pixels (default: 16, or the checkpoint's)")
    add("--train-size", type=int, default=224, help="of an untrained table, in pixels")
    add(
        "--checkpoint",
        help="abspos: the learned table of this timm ViT (a file or name as for cape-timm-eval); "
        "default: an untrained table, said so in the picture",
    )
    add("--model", help="timm's name, where the checkpoint does not record it")
    add("--abspos-antialias", action=argparse.BooleanOptionalAction, default=True)
    _add_common(command, seed=0)

    command = commands.add_parser(
        "augmentation",
        help="what CAPE does to the patches of an image, step by step",
        description="The patch grid, then global shift, local shift and global scale.",
    )
    command.set_defaults(draw=_draw_augmentation)
    add = command.add_argument
    add("--grid", type=int, nargs="+", default=[8], metavar="N", help="patches: N, or H W")
    add("--max-global-shift", type=float, default=0.5, help="Δ (default: 0.5)")
    add("--max-local-shift", type=float, help="ε (default: 1 / N per axis)")
    add("--max-global-scale", type=float, default=1.4, help="λ (default: 1.4)")
    _add_common(command, seed=5)

    command = commands.add_parser(
        "curves",
        help="top-1 against resolution or images per second, from evaluation CSVs",
        description="Curves from what cape-timm-eval --csv wrote.",
    )
    command.set_defaults(draw=_draw_curves)
    add = command.add_argument
    add("csv", nargs="+", type=Path, metavar="CSV")
    add("--against", choices=["resolution", "throughput"], default="resolution")
    add("--metric", choices=["top1", "top5"], default="top1")
    add(
        "--group",
        metavar="REGEX",
        help="what a search in the checkpoint's path finds (its first group, if any) is the name "
        "of its curve; checkpoints of one name (seeds) are averaged, with their range shaded",
    )
    add("--trained-at", type=int, nargs="+", default=[], metavar="R", help="sizes to mark")
    add("--title", default="")
    _add_common(command)

    command = commands.add_parser(
        "positions",
        help="loss against position in the target, from evaluation CSVs",
        description="Curves from what cape-fairseq-eval loss --csv wrote; models of one name "
        "(seeds) are averaged, with their range shaded.",
    )
    command.set_defaults(draw=_draw_positions)
    add = command.add_argument
    add("csv", nargs="+", type=Path, metavar="CSV")
    add("--window", type=int, default=9, metavar="N", help="moving average (default: 9; 1: none)")
    add(
        "--min-sentences",
        type=int,
        default=10,
        metavar="N",
        help="leave out positions that fewer sentences reach (default: 10)",
    )
    add("--trained-to", type=int, metavar="N", help="longest target in training, to be marked")
    add("--title", default="")
    _add_common(command)
    return parser


def _add_common(command: argparse.ArgumentParser, seed: int | None = None) -> None:
    if seed is not None:
        command.add_argument("--seed", type=int, default=seed, help=f"default: {seed}")
    out = Path(f"{command.prog.split()[-1]}.png")
    command.add_argument(
        "--out", type=Path, default=out, metavar="FILE", help=f".png, .pdf, .svg (default: {out})"
    )
    command.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def _draw_embeddings(args: argparse.Namespace) -> None:
    from cape_plugins.plot import embeddings

    if args.checkpoint is None:
        table = embeddings.untrained_table(args.dim, args.patch, args.train_size, args.seed)
    else:
        table = embeddings.learned_table(args.checkpoint, args.model)
    embeddings.draw(
        args.out,
        table,
        resolutions=args.resolutions,
        every=args.every,
        antialias=args.abspos_antialias,
        seed=args.seed,
    )


def _draw_augmentation(args: argparse.Namespace) -> None:
    from cape_plugins import Augmentation
    from cape_plugins.plot import augmentation

    if len(args.grid) > 2 or min(args.grid) < 1:
        raise ValueError(f"--grid takes N or H W, each ≥ 1, got {args.grid}")
    height, width = args.grid[0], args.grid[-1]
    local = args.max_local_shift
    settings = Augmentation(
        args.max_global_shift,
        (1 / height, 1 / width) if local is None else local,
        args.max_global_scale,
        mean_normalize=False,
    )
    augmentation.draw(args.out, settings, (height, width), seed=args.seed)


def _draw_curves(args: argparse.Namespace) -> None:
    from cape_plugins.plot import curves

    curves.draw(
        args.csv,
        args.out,
        against=args.against,
        metric=args.metric,
        group=args.group,
        trained_at=args.trained_at,
        title=args.title,
    )


def _draw_positions(args: argparse.Namespace) -> None:
    from cape_plugins.plot import positions_curve

    positions_curve.draw(
        args.csv,
        args.out,
        window=args.window,
        min_sentences=args.min_sentences,
        trained_to=args.trained_to,
        title=args.title,
    )


if __name__ == "__main__":
    main()
