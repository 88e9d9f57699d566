"""scikit-learn's handwritten digits, 8 × 8 pixels, as timm's ImageFolder.

    python integrations/timm/make_digit_images.py --out images

Writes {train,test}/<digit>/<index>.png: 450 of the 1,797 are for testing.
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
    parser.add_argument("--test", type=int, default=450, help="images (default: %(default)s)")
    arguments = parser.parse_args()
    digits = load_digits()
    train, test = train_test_split(
        range(len(digits.target)), test_size=arguments.test, random_state=0, stratify=digits.target
    )
    for split, indices in (("train", train), ("test", test)):
        for index in indices:
            path = arguments.out / split / str(digits.target[index]) / f"{index:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = (digits.images[index] * (255 / 16)).round().astype("uint8")
            Image.fromarray(pixels).save(path)


if __name__ == "__main__":
    main()
