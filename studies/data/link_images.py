"""Links to the first images of each class of CIFAR-10, of train and of test.

    python studies/data/link_images.py --data cifar10 --out images --train 5000 --test 400

``--data`` holds train/<class>/*.jpg and test/<class>/*.jpg. ``--out`` gets the same folders. With
``--validation 500`` it also gets validation/<class>/*.jpg, the last images of train.
"""

from pathlib import Path

from cape_studies.command import script


def main(data: Path, out: Path, train: int = 5000, test: int = 1000, validation: int = 0) -> None:
    """Link all splits.

    Args:
        data: CIFAR-10, train/ and test/.
        out: folder to write.
        train: images of each class.
        test: images of each class.
        validation: images of each class, of train.

    Raises:
        ValueError: there are not ten classes, or too few images.
    """
    for source, counts in (
        ("train", {"train": train, "validation": validation}),
        ("test", {"test": test}),
    ):
        classes = sorted(path for path in (data / source).glob("[!.]*") if path.is_dir())
        if len(classes) != 10:
            raise ValueError(f"{data / source} must hold ten classes, found {len(classes)}")
        for folder in classes:
            images = sorted(folder.glob("[!.]*.jpg"))
            if len(images) < sum(counts.values()):
                raise ValueError(f"{folder} has {len(images)} images, of {counts} in all")
            for part, many in counts.items():
                chosen = images[-many:] if part == "validation" else images[:many]
                for image in chosen if many else ():
                    link = out / part / folder.name / image.name
                    link.parent.mkdir(parents=True, exist_ok=True)
                    if not link.is_symlink():
                        link.symlink_to(image.absolute())


if __name__ == "__main__":
    script(main)
