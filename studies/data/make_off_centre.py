"""Images on a larger black canvas: in its middle, anywhere on it, or moved by some pixels.

    python studies/data/make_off_centre.py --images images/test --out off_centre
    python studies/data/make_off_centre.py --images images/test --out moved --shifts 0 1 2

Writes {centre,anywhere}/<class>/<image>.png for timm's ImageFolder. The two differ only in where
the object is. With ``--shifts`` writes {0,1,2,corner}/…: the object moved by so many pixels, and
into a corner. The images take the four directions and the four corners in turn.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

DIRECTIONS = (1, 0), (0, 1), (-1, 0), (0, -1)
CORNERS = (1, 1), (-1, 1), (-1, -1), (1, -1)


def main() -> None:
    """Write all; end with status 2 and a line if there are no images or they do not fit."""
    arguments, parser = parse()
    paths = sorted(path for path in arguments.images.glob("[!.]*/[!.]*") if path.is_file())
    if not paths:
        parser.error(f"{arguments.images} holds no <class>/<image>")
    places = random.Random(arguments.seed)
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            size = tuple(round(side * arguments.canvas) for side in image.size)
            room = [(whole - side) // 2 for whole, side in zip(size, image.size, strict=True)]
            if max(arguments.shifts, default=arguments.jitter) > min(room):
                parser.error(f"objects have room for {min(room)} pixels to each side on the canvas")
            moved = moves(number, room, arguments, places)
            for split, name, move in moved:
                canvas = Image.new(image.mode, size)
                canvas.paste(image, tuple(one + by for one, by in zip(room, move, strict=True)))
                out = arguments.out / split / path.parent.name / f"{path.stem}{name}.png"
                out.parent.mkdir(parents=True, exist_ok=True)
                canvas.save(out)


def parse() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--images", type=Path, required=True, help="folder of <class>/<image>")
    add("--out", type=Path, required=True, help="folder to write")
    add("--canvas", type=float, default=1.5, help="its side, in image sides (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the places")
    add("--jitter", type=int, default=0, help="pixels around the middle, at most (default: none)")
    add("--copies", type=int, default=1, help="how many of each image, each at another place")
    about = "write these shifts in pixels, instead of centre and anywhere"
    add("--shifts", type=int, nargs="+", default=[], metavar="N", help=about)
    arguments = parser.parse_args()
    if arguments.canvas < 1:
        parser.error(f"--canvas must be ≥ 1, got {arguments.canvas:g}")
    for name, least in (("jitter", 0), ("copies", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be ≥ {least}, got {getattr(arguments, name)}")
    if min(arguments.shifts, default=0) < 0 or (arguments.shifts and arguments.jitter):
        parser.error("--shifts are ≥ 0 pixels, and exact: leave --jitter out")
    return arguments, parser


def moves(
    number: int, room: list[int], arguments: argparse.Namespace, places: random.Random
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """For each copy of an image: split, end of the file's name, pixels (x, y) from the middle."""
    if arguments.shifts:
        x, y = DIRECTIONS[number % 4]
        for shift in arguments.shifts:
            yield str(shift), "", (shift * x, shift * y)
        x, y = CORNERS[number % 4]
        yield "corner", "", (room[0] * x, room[1] * y)
        return
    jitter = arguments.jitter
    for copy in range(arguments.copies):
        name = f"_{copy}" if arguments.copies > 1 else ""
        yield "centre", name, tuple(jitter and places.randint(-jitter, jitter) for _ in room)
        yield "anywhere", name, tuple(places.randint(-one, one) for one in room)


if __name__ == "__main__":
    main()
