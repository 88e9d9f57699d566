"""A folder of images: its classes and splits, and an image as timm's reader gives it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from timm.data import get_img_extensions
from timm.utils import natural_key

from cape_studies.data.files import complain, files, kinds
from cape_studies.data.split import drawn

TRAINS = "train", "training"
TESTS = "test", "validation", "val", "testing", "valid", "eval", "evaluation", "dev"
HELD_OUT = 5  # one in so many

#: class → name for a link → file; timm takes the innermost folder for the class, so the name of a
#: file in a sub-folder has that of the folder
Classes = dict[str, dict[str, Path]]


class Images(NamedTuple):
    """Files of train and test by class, and the account: where the test is from, what is left
    out."""

    train: Classes
    test: Classes
    how: str


def look(folder: Path) -> Images:
    """The images of a folder, before any is opened. A class is a folder with all below it.

    Raises:
        ValueError: no classes, a class that only train or test has, or one with a single image.
    """
    if not folder.is_dir():
        raise ValueError(f"no such folder of images: {folder}")
    left: list[Path] = []
    parts = {path.name.lower(): path for path in sorted(folder.iterdir()) if _has_classes(path)}
    trained, tested = (next((n for n in names if n in parts), "") for names in (TRAINS, TESTS))
    if trained:
        if not tested:
            names = ", ".join(TESTS[:3])
            raise ValueError(f"{parts[trained]} has classes, and none of {names} has: add a test")
        train, test = (_classes(parts[name], left) for name in (trained, tested))
        others = set(folder.glob("[!.]*")) - {parts[trained], parts[tested]}
        how = f"tested on those in {parts[tested].name}/"
        how += "".join(f", {path.name} is not used" for path in sorted(others))
    else:
        train, test = {}, {}
        for name, paths in _classes(folder, left).items():
            many = max(1, len(paths) // HELD_OUT)
            tests, rest = drawn(paths.items(), many, lambda one: one[1].name)
            test[name], train[name] = dict(tests), dict(rest)
        how = f"of one folder: the test is one in {HELD_OUT} of each class, chosen by name"
    used = [path for part in (train, test) for paths in part.values() for path in paths.values()]
    how = f"{kinds(used)}; {how}"
    if left:
        allowed = ", ".join(get_img_extensions())
        how += f"; left out: {kinds(left)}, as timm reads {allowed} in the folder of a class"
    complain(folder, _odd_classes(folder, how, train, test))
    return Images(train, test, how)


def _has_classes(path: Path) -> bool:
    """Whether a folder is a split: it holds folders. ``train`` with images is a class."""
    return path.is_dir() and any(inside.is_dir() for inside in path.iterdir())


def _classes(folder: Path, left: list[Path]) -> Classes:
    found: Classes = {}
    for path in files(folder):
        inside = path.relative_to(folder).parts
        if len(inside) > 1 and path.suffix.lower() in get_img_extensions():
            place = "%2F".join(one.replace("%", "%25") for one in inside[1:])
            found.setdefault(inside[0], {})[place] = path
        else:
            left.append(path)
    return found


def _odd_classes(folder: Path, how: str, *parts: Classes) -> Iterator[str]:
    names = sorted({*parts[0], *parts[1]})
    if len(names) < 2:
        yield f"{folder} has {len(names)} classes of images (<class>/*), 2 are needed: {how}"
    for name in names:
        train, test = (len(part.get(name, ())) for part in parts)
        if not train or not test:
            yield (
                f"class {name!r} of {folder} has {train} images to train on and {test} to test, "
                f"one of each is needed: {how}"
            )


def opened(file: Any, name: object) -> Image.Image:
    """An image in RGB, as timm's reader makes it.

    Args:
        file: a path or an open file.
        name: for errors.

    Raises:
        ValueError: it cannot be read, or has more than 8 bits a channel.
    """
    try:
        with Image.open(file) as image:
            if image.mode[0] in "IF":  # I;16 of PNG and TIFF, I, F
                raise ValueError(
                    f"it has more than 8 bits a channel (mode {image.mode}), and timm's reader "
                    "makes it white: scale it to 8 bits"
                )
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} cannot be used as an image: {error}") from error


def moved(image: Image.Image, right: float, down: float) -> Image.Image:
    """An image cut to a square and moved by fractions of its side; the room is filled with the mean
    of its edge."""
    image = ImageOps.fit(image, (min(image.size),) * 2)
    pixels, side = np.asarray(image), image.width
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    canvas = Image.new("RGB", image.size, tuple(edge.mean(axis=0).round().astype(int).tolist()))
    canvas.paste(image, (round(right * side), round(down * side)))
    return canvas


def leave_out_hidden(reader: Any) -> None:
    """Leave hidden files (``._a.jpg`` of a Mac, ``.ipynb_checkpoints``) out of timm's reader, and
    classes that have no others."""
    names = {index: name for name, index in reader.class_to_idx.items()}
    hidden, inside = f"{os.sep}.", len(reader.root)
    seen = [one for one in reader.samples if hidden not in os.sep + one[0][inside:]]
    kept = sorted({names[index] for _, index in seen}, key=natural_key)
    reader.class_to_idx = {name: index for index, name in enumerate(kept)}
    reader.samples = [(path, reader.class_to_idx[names[index]]) for path, index in seen]
