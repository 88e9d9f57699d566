"""Images on a larger black canvas: in its middle, anywhere on it, or moved by some pixels.

    python studies/data/make_off_centre.py --images images/test --out off_centre
    python studies/data/make_off_centre.py --images images/test --out moved --shifts 0 1 2

Writes {centre,anywhere}/<class>/<image>.png for timm's ImageFolder. The two differ only in where
the object is. With ``--shifts`` writes {0,1,2,corner}/…: the object moved by so many pixels, and
into a corner. The images take the four directions and the four corners in turn.
"""

import random
from pathlib import Path

from PIL import Image

from cape_studies.command import script

DIRECTIONS = (1, 0), (0, 1), (-1, 0), (0, -1)
CORNERS = (1, 1), (-1, 1), (-1, -1), (1, -1)


def main(
    images: Path,
    out: Path,
    canvas: float = 1.5,
    jitter: int = 0,
    copies: int = 1,
    shifts: tuple[int, ...] = (),
) -> None:
    """Write all.

    Args:
        images: folder of <class>/<image>.
        out: folder to write.
        canvas: its side, in image sides.
        jitter: pixels around the middle, at most.
        copies: how many of each image, each at another place.
        shifts: in pixels, instead of centre and anywhere.

    Raises:
        ValueError: there are no images, or they do not fit.
    """
    if shifts and (jitter or copies > 1):
        raise ValueError("--shifts are exact: leave --jitter and --copies out")
    paths = sorted(path for path in images.glob("[!.]*/[!.]*") if path.is_file())
    if not paths:
        raise ValueError(f"{images} holds no <class>/<image>")
    draw = random.Random(0).randint
    for number, path in enumerate(paths):
        image = Image.open(path)
        size = [round(side * canvas) for side in image.size]
        room = [(whole - side) // 2 for whole, side in zip(size, image.size, strict=True)]
        if max(shifts, default=jitter) > min(room):
            raise ValueError(f"--canvas {canvas:g} has {min(room)} pixels around {path}")
        x, y = DIRECTIONS[number % 4]
        moves = [(str(shift), "", (shift * x, shift * y)) for shift in shifts]
        if shifts:
            x, y = CORNERS[number % 4]
            moves.append(("corner", "", (room[0] * x, room[1] * y)))
        for copy in range(0 if shifts else copies):
            name = f"_{copy}" if copies > 1 else ""
            x, y = (jitter and draw(-jitter, jitter) for _ in room)
            moves.append(("centre", name, (x, y)))
            x, y = (draw(-one, one) for one in room)
            moves.append(("anywhere", name, (x, y)))
        for split, name, (x, y) in moves:
            larger = Image.new(image.mode, size)
            larger.paste(image, (room[0] + x, room[1] + y))
            place = out / split / path.parent.name / f"{path.stem}{name}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            larger.save(place)


if __name__ == "__main__":
    script(main)
