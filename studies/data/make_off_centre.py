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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--images", type=Path, required=True, help="folder of <class>/<image>")
    add("--out", type=Path, required=True, help="folder to write")
    add("--canvas", type=float, default=1.5, help="its side, in image sides (default: %(default)s)")
    add("--jitter", type=int, default=0, help="pixels around the middle, at most (default: none)")
    add("--copies", type=int, default=1, help="how many of each image, each at another place")
    about = "write these shifts in pixels, instead of centre and anywhere"
    add("--shifts", type=int, nargs="+", default=[], metavar="N", help=about)
    given = parser.parse_args()
    if given.shifts and (given.jitter or given.copies > 1):
        parser.error("--shifts are exact: leave --jitter and --copies out")
    paths = sorted(path for path in given.images.glob("[!.]*/[!.]*") if path.is_file())
    if not paths:
        parser.error(f"{given.images} holds no <class>/<image>")
    draw = random.Random(0)
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            size = tuple(round(side * given.canvas) for side in image.size)
            room = [(whole - side) // 2 for whole, side in zip(size, image.size, strict=True)]
            if max(given.shifts, default=given.jitter) > min(room):
                parser.error(f"--canvas {given.canvas:g} has {min(room)} pixels around {path}")
            if given.shifts:
                moved = shifted(number, room, given.shifts)
            else:
                moved = drawn(draw, room, given.jitter, given.copies)
            for split, name, move in moved:
                canvas = Image.new(image.mode, size)
                canvas.paste(image, tuple(one + by for one, by in zip(room, move, strict=True)))
                out = given.out / split / path.parent.name / f"{path.stem}{name}.png"
                out.parent.mkdir(parents=True, exist_ok=True)
                canvas.save(out)


Move = tuple[str, str, tuple[int, ...]]  # split, end of the file's name, pixels from the middle


def shifted(number: int, room: list[int], shifts: list[int]) -> Iterator[Move]:
    """An image moved by each shift, and into a corner."""
    x, y = DIRECTIONS[number % 4]
    for shift in shifts:
        yield str(shift), "", (shift * x, shift * y)
    x, y = CORNERS[number % 4]
    yield "corner", "", (room[0] * x, room[1] * y)


def drawn(draw: random.Random, room: list[int], jitter: int, copies: int) -> Iterator[Move]:
    """Copies of an image in the middle and anywhere."""
    for copy in range(copies):
        name = f"_{copy}" if copies > 1 else ""
        yield "centre", name, tuple(jitter and draw.randint(-jitter, jitter) for _ in room)
        yield "anywhere", name, tuple(draw.randint(-one, one) for one in room)


if __name__ == "__main__":
    main()
