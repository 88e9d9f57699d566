"""Two-digit numbers, made of images of single digits: only a digit's place says what it counts.

    python studies/data/make_number_images.py --images images --out numbers

``--images`` is what make_digit_images.py wrote. Writes {train,validation,test}/<number>/<index>.png
for the numbers 00 to 99: 40, 5 and 10 images of each, of two random images of the split, on a black
square.
"""

import random
from pathlib import Path

from PIL import Image

from cape_studies.command import script

COUNTS = {"train": 40, "validation": 5, "test": 10}


def main(images: Path, out: Path) -> None:
    """Write all of them.

    Args:
        images: {train,validation,test}/<digit>/<image>.
        out: folder to write.
    """
    draw = random.Random(0)
    for split, count in COUNTS.items():
        digits = [sorted((images / split / str(one)).glob("[!.]*")) for one in range(10)]
        for number in range(100):
            folder = out / split / f"{number:02}"
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                two = [Image.open(draw.choice(digits[one])) for one in divmod(number, 10)]
                side = sum(image.width for image in two)
                down = (side - two[0].height) // 2
                square = Image.new("L", (side, side))
                square.paste(two[0], (0, down))
                square.paste(two[1], (two[0].width, down))
                square.save(folder / f"{index:02}.png")


if __name__ == "__main__":
    script(main)
