"""Links to the first images of each class of CIFAR-10, of train and of test.

    python studies/data/link_images.py --data cifar10 --out images --train 5000 --test 400

``--data`` holds train/<class>/*.jpg and test/<class>/*.jpg. ``--out`` gets the same folders. With
``--validation 500`` it also gets validation/<class>/*.jpg, the last images of train.
"""

import argparse
from pathlib import Path


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
    given = parser.parse_args()
    for source, counts in (
        ("train", {"train": given.train, "validation": given.validation}),
        ("test", {"test": given.test}),
    ):
        classes = sorted(path for path in (given.data / source).glob("[!.]*") if path.is_dir())
        if len(classes) != 10:
            parser.error(f"{given.data / source} must hold ten classes, found {len(classes)}")
        for folder in classes:
            images = sorted(folder.glob("[!.]*.jpg"))
            if len(images) < sum(counts.values()):
                parser.error(f"{folder} has {len(images)} images, {sum(counts.values())} needed")
            for part, many in counts.items():
                chosen = images[-many:] if part == "validation" else images[:many]
                for image in chosen if many else ():
                    link = given.out / part / folder.name / image.name
                    link.parent.mkdir(parents=True, exist_ok=True)
                    if not link.is_symlink():
                        link.symlink_to(image.resolve())


if __name__ == "__main__":
    main()
