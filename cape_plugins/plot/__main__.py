"""The command line of the pictures; the drawing is in its neighbours, one picture a file."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cape_plugins.plot import canvas

_NOT_DRAWN = ("picture", "draw", "overwrite")
_OF_RESULTS = {  # drawn by the evaluation, which is imported for them alone
    "curves": (
        "cape_plugins.evaluation.timm.curves",
        "top-1 against resolution or images per second, from evaluation CSVs",
    ),
    "positions": (
        "cape_plugins.evaluation.fairseq.positions_curve",
        "loss against position in the target, from evaluation CSVs",
    ),
    "hops": (
        "cape_plugins.evaluation.espnet.hops_figure",
        "hops of ESPnet trainings without padding, from their config.yaml",
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Draw one picture; ends with status 2 and one line on stderr if something is wrong."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in _OF_RESULTS:
        importlib.import_module(_OF_RESULTS[argv[0]][0]).main(argv[1:])
        return
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        canvas.check(args.out, args.overwrite)
        options = {key: value for key, value in vars(args).items() if key not in _NOT_DRAWN}
        args.draw(**options)
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

    for name, (_, help) in _OF_RESULTS.items():
        commands.add_parser(name, help=help, add_help=False)
    return parser


def _add_common(command: argparse.ArgumentParser, seed: int) -> None:
    command.add_argument("--seed", type=int, default=seed, help=f"default: {seed}")
    out = Path(f"{command.prog.split()[-1]}.png")
    command.add_argument(
        "--out", type=Path, default=out, metavar="FILE", help=f".png, .pdf, .svg (default: {out})"
    )
    command.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def _draw_embeddings(
    *,
    checkpoint: str | None,
    model: str | None,
    dim: int,
    patch: int,
    train_size: int,
    abspos_antialias: bool,
    **options: Any,
) -> None:
    from cape_plugins.plot import embeddings

    if checkpoint is None:
        table = embeddings.untrained_table(dim, patch, train_size, options["seed"])
    else:
        from cape_plugins.evaluation.timm import abspos_table

        table = abspos_table.learned(checkpoint, model)
    embeddings.draw(table=table, antialias=abspos_antialias, **options)


def _draw_augmentation(
    *,
    grid: Sequence[int],
    max_global_shift: float,
    max_local_shift: float | None,
    max_global_scale: float,
    **options: Any,
) -> None:
    from cape_plugins import Augmentation
    from cape_plugins.plot import augmentation

    if len(grid) > 2 or min(grid) < 1:
        raise ValueError(f"--grid takes N or H W, each ≥ 1, got {grid}")
    height, width = grid[0], grid[-1]
    local = (1 / height, 1 / width) if max_local_shift is None else max_local_shift
    settings = Augmentation(max_global_shift, local, max_global_scale, mean_normalize=False)
    augmentation.draw(settings=settings, grid=(height, width), **options)


if __name__ == "__main__":
    main()
