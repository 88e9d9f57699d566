"""Links to the first images of each class of CIFAR-10, of train and of test.

    python studies/data/link_images.py --data cifar10 --out images --train 5000 --test 400

``--data`` holds train/<class>/*.jpg and test/<class>/*.jpg. ``--out`` gets the same folders. With
``--validation 500`` it also gets validation/<class>/*.jpg, the last images of train.
"""

import argparse
from pathlib import Path

CLASSES = 10


def main() -> None:
    """Link all splits; at bad input end with status 2 and a line that names what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10: train/, test/")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=5000, help="images of each class")
    parser.add_argument("--test", type=int, default=1000, help="images of each class")
    parser.add_argument("--validation", type=int, default=0, help="images of each class, of train")
    arguments = parser.parse_args()
    data = arguments.data
    out = arguments.out
    held = arguments.validation
    try:
        link(data / "train", out / "train", 0, arguments.train, held)
        link(data / "test", out / "test", 0, arguments.test)
        if held:
            link(data / "train", out / "validation", -held, held)
    except ValueError as error:
        parser.error(str(error))


def link(source: Path, out: Path, first: int, per_class: int, kept: int = 0) -> None:
    """Link images of each class, in the order of their names, as <class>/<image>.jpg.

    Args:
        source: folder of the classes' folders.
        out: folder to write.
        first: index of the first image to link; negative: counted from the end.
        per_class: how many images to link.
        kept: how many images at the end of each class are not to be linked.

    Raises:
        ValueError: there are not ten classes, or too few images.
    """
    classes = sorted(path for path in source.glob("[!.]*") if path.is_dir())
    if len(classes) != CLASSES:
        raise ValueError(f"{source} must hold CIFAR-10's ten class folders, found {len(classes)}")
    for folder in classes:
        images = sorted(folder.glob("[!.]*.jpg"))
        if len(images) < per_class + kept:
            needed = per_class + kept
            raise ValueError(f"{folder} holds {len(images)} images, {needed} are needed")
        (out / folder.name).mkdir(parents=True, exist_ok=True)
        for image in images[first:][:per_class]:
            place = out / folder.name / image.name
            if not place.is_symlink():
                place.symlink_to(image.resolve())


if __name__ == "__main__":
    main()
