"""Two-digit numbers, made of images of single digits: only a digit's place says what it counts.

    python studies/data/make_number_images.py --images images --out numbers

``--images`` is what make_digit_images.py wrote. Writes {train,validation,test}/<number>/<index>.png
for the numbers 00 to 99. Each is made of two random images of its split, on a black square.
"""

import argparse
import random
from pathlib import Path

from PIL import Image

SPLITS = "train", "validation", "test"


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="{train,…}/<digit>/<image>")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    for split, default in zip(SPLITS, (40, 5, 10), strict=True):
        about = "images of each number (default: %(default)s)"
        parser.add_argument(f"--{split}", type=int, default=default, metavar="N", help=about)
    arguments = parser.parse_args()
    draw = random.Random(0)
    for split in SPLITS:
        folders = [arguments.images / split / str(digit) for digit in range(10)]
        digits = [sorted(folder.glob("[!.]*")) for folder in folders]
        if not all(digits):
            parser.error(f"{arguments.images / split} lacks a digit's folder: 0 … 9, with images")
        for number in range(100):
            out = arguments.out / split / f"{number:02}"
            out.mkdir(parents=True, exist_ok=True)
            for index in range(getattr(arguments, split)):
                two = [Image.open(draw.choice(digits[one])) for one in divmod(number, 10)]
                side = sum(image.width for image in two)
                height = two[0].height
                square = Image.new("L", (side, side))
                square.paste(two[0], (0, (side - height) // 2))
                square.paste(two[1], (two[0].width, (side - height) // 2))
                square.save(out / f"{index:02}.png")


if __name__ == "__main__":
    main()
