"""scikit-learn's handwritten digits, 8 × 8 pixels, as timm's ImageFolder.

    python studies/data/make_digit_images.py --out images

Writes {train,validation,test}/<digit>/<index>.png. Of the 1,797 images 450 are for testing and 300
for choosing settings. With --sides each is resized to each of these, <index>_<side>.png.
"""

import argparse
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--sides", type=int, nargs="+", default=[], help="in pixels")
    given = parser.parse_args()
    digits = load_digits()
    parts = {}
    rest = list(range(len(digits.target)))
    for part, many in (("test", 450), ("validation", 300)):
        rest, parts[part] = train_test_split(
            rest, test_size=many, random_state=0, stratify=digits.target[rest]
        )
    for part, indices in {"train": rest, **parts}.items():
        for index in indices:
            folder = given.out / part / str(digits.target[index])
            folder.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray((digits.images[index] * (255 / 16)).round().astype("uint8"))
            if not given.sides:
                image.save(folder / f"{index:04}.png")
            for side in given.sides:
                resized = image.resize((side, side), Image.Resampling.BICUBIC)
                resized.save(folder / f"{index:04}_{side}.png")


if __name__ == "__main__":
    main()
