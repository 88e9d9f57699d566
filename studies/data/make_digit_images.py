"""scikit-learn's handwritten digits, 8 × 8 pixels, as timm's ImageFolder.

    python studies/data/make_digit_images.py --out images

Writes {train,validation,test}/<digit>/<index>.png. Of the 1,797 images 450 are for testing and 300
for choosing settings. With --sides each is resized to each of these, <index>_<side>.png.
"""

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from cape_studies.command import script


def main(out: Path, sides: tuple[int, ...] = ()) -> None:
    """Write all of them.

    Args:
        out: folder to write.
        sides: in pixels.
    """
    digits = load_digits()
    parts = {}
    rest = list(range(len(digits.target)))
    for part, many in (("test", 450), ("validation", 300)):
        rest, parts[part] = train_test_split(
            rest, test_size=many, random_state=0, stratify=digits.target[rest]
        )
    for part, indices in {"train": rest, **parts}.items():
        for index in indices:
            folder = out / part / str(digits.target[index])
            folder.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray((digits.images[index] * (255 / 16)).round().astype("uint8"))
            if not sides:
                image.save(folder / f"{index:04}.png")
            for side in sides:
                resized = image.resize((side, side), Image.Resampling.BICUBIC)
                resized.save(folder / f"{index:04}_{side}.png")


if __name__ == "__main__":
    script(main)
