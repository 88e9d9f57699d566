"""Images on a larger black canvas, in its middle and anywhere on it, as timm's ImageFolder.

    python integrations/timm/make_off_centre.py --images images/test --out off_centre

Writes {centre,anywhere}/<class>/<image>.png: what differs between the two is where the object is.
"""

import argparse
import random
from pathlib import Path

from PIL import Image


def main() -> None:
    """Write both; ends with status 2 and a line if there are no images."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="folder of <class>/<image>")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--canvas", type=float, default=1.5, help="its side, in the image's")
    parser.add_argument("--seed", type=int, default=0, help="of the places")
    arguments = parser.parse_args()
    if arguments.canvas < 1:
        parser.error(f"--canvas must be ≥ 1, got {arguments.canvas:g}")
    paths = sorted(path for path in arguments.images.glob("*/*") if path.is_file())
    if not paths:
        parser.error(f"{arguments.images} holds no <class>/<image>")
    places = random.Random(arguments.seed)
    for path in paths:
        with Image.open(path) as image:
            size = tuple(round(side * arguments.canvas) for side in image.size)
            room = [whole - side for whole, side in zip(size, image.size, strict=True)]
            corners = {
                "centre": tuple(one // 2 for one in room),
                "anywhere": tuple(places.randint(0, one) for one in room),
            }
            for split, corner in corners.items():
                canvas = Image.new(image.mode, size)
                canvas.paste(image, corner)
                out = arguments.out / split / path.parent.name / f"{path.stem}.png"
                out.parent.mkdir(parents=True, exist_ok=True)
                canvas.save(out)


if __name__ == "__main__":
    main()
