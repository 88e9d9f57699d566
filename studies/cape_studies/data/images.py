"""A folder of images: its classes and splits, and an image as timm's reader gives it."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from timm.data import get_img_extensions

from cape_studies.data.files import account, complain, files
from cape_studies.data.split import TESTS, TRAINS, drawn, groups_of, held_out, in_both

HELD_OUT = 5  # one in so many

#: class → name for a link → file; timm takes the innermost folder for the class, so the name of a
#: file in a sub-folder has that of the folder
Classes = dict[str, dict[str, Path]]


class Images(NamedTuple):
    """Files of train and test by class; the account: what is used, what is left out, where the test
    is from; and the group of each file, if there are groups."""

    train: Classes
    test: Classes
    how: str
    groups: Mapping[Path, str]


def look(folder: Path, group: str | None = None) -> Images:
    """The images of a folder, before any is opened. A class is a folder with all below it.

    Args:
        folder: of the images.
        group: see :func:`cape_studies.data.split.groups_of`.

    Raises:
        ValueError: no classes, a class that only train or test has, or one with a single image; a
            group that both have, or an expression that tells no groups apart.
        OSError: a folder cannot be read.
    """
    every = list(files(folder))
    inside = [path.relative_to(folder).parts for path in every]
    # train/ that holds folders is a split, with images it is a class
    parts = {own[0].lower(): folder / own[0] for own in inside if len(own) > 2}
    trained, tested = (next((n for n in names if n in parts), "") for names in (TRAINS, TESTS))
    if trained and not tested:
        names = ", ".join(TESTS[:3])
        raise ValueError(f"{parts[trained]} has classes, and none of {names} has: add a test")
    reason = f"not {', '.join(get_img_extensions())}, or in no class"
    if trained:
        train, test = (_classes(parts[name], every) for name in (trained, tested))
        reason += f" of {parts[trained].name}/ or {parts[tested].name}/"
        how = f"tested on those in {parts[tested].name}/"
        groups = _groups(folder, [train, test], group)
        complain(in_both(*({groups[one] for one in _paths(x)} for x in (train, test) if groups)))
    else:
        train, test, classes = {}, {}, _classes(folder, every)
        groups = _groups(folder, [classes], group)
        held, how = held_out(groups.values()) if groups else (set(), "")
        for name, paths in classes.items():
            if groups:
                tests = [place for place, path in paths.items() if groups[path] in held]
            else:
                tests, _ = drawn(paths, max(1, len(paths) // HELD_OUT))
            test[name] = {place: paths[place] for place in tests}
            train[name] = {place: paths[place] for place in paths if place not in {*tests}}
        one_in = f"the test is one in {HELD_OUT} of each class, chosen by name"
        how = f"of one folder: {how or one_in}"
    used = [path for part in (train, test) for paths in part.values() for path in paths.values()]
    how = f"{account(used, every, reason)}; {how}"
    counts = {n: [len(part.get(n, ())) for part in (train, test)] for n in sorted({*train, *test})}
    if len(counts) < 2:
        raise ValueError(f"{folder} has {len(counts)} classes of images, 2 are needed: {how}")
    complain(
        f"class {name!r} of {folder} has {many} images to train on and {few} to test, one of each "
        f"is needed: {how}"
        for name, (many, few) in counts.items()
        if not (many and few)
    )
    return Images(train, test, how, groups)


def _paths(classes: Classes) -> Iterator[Path]:
    for paths in classes.values():
        yield from paths.values()


def _groups(folder: Path, parts: Iterable[Classes], group: str | None) -> dict[Path, str]:
    names = {path.relative_to(folder).as_posix(): path for part in parts for path in _paths(part)}
    return {names[name]: own for name, own in groups_of(names, group).items()}


def _classes(folder: Path, every: Sequence[Path]) -> Classes:
    found: Classes = {}
    for path in every:
        inside = path.relative_to(folder).parts if folder in path.parents else ()
        if len(inside) > 1 and path.suffix.lower() in get_img_extensions():
            place = "%2F".join(one.replace("%", "%25") for one in inside[1:])
            found.setdefault(inside[0], {})[place] = path
    return found


def opened(file: Any, name: object, upright: bool = False) -> Image.Image:
    """An image in RGB, as timm's reader makes it.

    Args:
        file: a path or an open file.
        name: for errors.
        upright: turn it as its EXIF says, which timm's reader does not.

    Raises:
        ValueError: it cannot be read, has more than 8 bits a channel, or shows something in its
            alpha channel alone, which timm's reader leaves out.
    """
    try:
        with Image.open(file) as image:
            if image.mode[0] in "IF":  # I;16 of PNG and TIFF, I, F
                raise ValueError(
                    f"it has more than 8 bits a channel (mode {image.mode}), and timm's reader "
                    "makes it white: scale it to 8 bits"
                )
            turned = ImageOps.exif_transpose(image) if upright else image
            colours = turned.convert("RGB")
            if image.has_transparency_data and _plain(colours):
                alpha = image.convert("RGBA").getchannel("A")
                if not _plain(alpha):
                    raise ValueError(
                        "its content is in the alpha channel alone, which timm's reader leaves "
                        "out: put it on a ground of another colour and save it as RGB"
                    )
            return colours
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} cannot be used as an image: {error}") from error


def _plain(image: Image.Image) -> bool:
    """Whether all pixels are alike."""
    ends: Any = image.getextrema()
    return all(low == high for low, high in (ends if image.mode == "RGB" else [ends]))


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
    names, inside = list(reader.class_to_idx), len(reader.root)
    seen = [
        (path, names[i]) for path, i in reader.samples if f"{os.sep}." not in os.sep + path[inside:]
    ]
    used = {name for _, name in seen}
    reader.class_to_idx = {n: i for i, n in enumerate(n for n in names if n in used)}
    reader.samples = [(path, reader.class_to_idx[name]) for path, name in seen]
