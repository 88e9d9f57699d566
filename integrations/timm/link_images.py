"""The first images of each class of CIFAR-10, linked: all of train, a part of test.

    python integrations/timm/link_images.py --data cifar10 --out images --train 5000 --test 400

``--data`` holds train/<class>/*.jpg and test/<class>/*.jpg; so does ``--out`` afterwards.
"""

import argparse
from pathlib import Path

CLASSES = 10


def main() -> None:
    """Link both splits; ends with status 2 and a line that names what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10: train/, test/")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=5000, help="images of each class")
    parser.add_argument("--test", type=int, default=1000, help="images of each class")
    arguments = parser.parse_args()
    try:
        for split in ("train", "test"):
            link(arguments.data / split, arguments.out / split, getattr(arguments, split))
    except ValueError as error:
        parser.error(str(error))


def link(source: Path, out: Path, per_class: int) -> None:
    """Link the first images of each class, by name, as <class>/<image>.jpg.

    Raises:
        ValueError: there are not ten classes, or too few images.
    """
    classes = sorted(path for path in source.glob("*") if path.is_dir())
    if len(classes) != CLASSES:
        raise ValueError(f"{source} must hold CIFAR-10's ten class folders, found {len(classes)}")
    for folder in classes:
        images = sorted(folder.glob("*.jpg"))[:per_class]
        if len(images) < per_class:
            raise ValueError(f"{folder} holds {len(images)} images, {per_class} are needed")
        (out / folder.name).mkdir(parents=True, exist_ok=True)
        for image in images:
            place = out / folder.name / image.name
            if not place.is_symlink():
                place.symlink_to(image.resolve())


if __name__ == "__main__":
    main()
