"""A user's images: checked, split into train and test, and in the sizes that a study needs.

    python -m cape_studies.ask.images --images DIR --out prepared --side 32

``DIR`` holds ``train/<class>/*`` and ``test/<class>/*`` (or ``validation``, ``val``), or only
``<class>/*``. In the second case a fifth of each class is for testing: the images whose names have
the smallest digests, so every call takes the same images.

Writes {train,test,moved}/<class>/. Images whose shorter side is longer than twice ``--side`` are
reduced to that. ``moved`` has the test images, cut to squares and moved by a quarter of their side;
the room is filled with the mean of their edge. With --anywhere, ``anywhere`` has the training
images, each moved by up to a quarter of its side in any direction.
"""

import hashlib
import math
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from cape_studies.ask.held_out import command, complain, drawn
from cape_studies.experiments.hosts import Machine
from cape_studies.experiments.study import Study, find

TESTS = "test", "validation", "val"
HELD_OUT = 5  # one in so many
DIRECTIONS = (0.25, 0), (0, 0.25), (-0.25, 0), (0, -0.25)  # of the side
SIDES = 128, 64, 32, 16  # pixels that models are trained at, of eight patches
SCALES = 0.75, 1, 1.5, 2  # of the side, in testing
SEEN = 100_000  # images that a short training shows a model, each at least 10 and at most 100 times


class Images(NamedTuple):
    """Files of train and test by class, and the folder of each part."""

    train: dict[str, list[Path]]
    test: dict[str, list[Path]]
    how: str


def look(folder: Path) -> Images:
    """The images of a folder, before any is read.

    Raises:
        ValueError: no classes, a class that only train or test has, or one with a single image.
    """
    if (folder / "train").is_dir():
        there = [name for name in TESTS if (folder / name).is_dir()]
        if not there:
            raise ValueError(f"{folder} has train/ but none of {', '.join(TESTS)}: add one to test")
        train, test = _classes(folder / "train"), _classes(folder / there[0])
        how = f"tested on those in {there[0]}/"
    else:
        train, test = {}, {}
        for name, files in _classes(folder).items():
            many = max(1, len(files) // HELD_OUT)
            test[name], train[name] = drawn(files, many, lambda path: path.name)
        how = f"of one folder: the test is one in {HELD_OUT} of each class, chosen by name"
    complain(folder, _odd_classes(folder, train, test))
    return Images(train, test, how)


def _classes(folder: Path) -> dict[str, list[Path]]:
    from timm.data import get_img_extensions

    kinds = tuple(get_img_extensions())
    return {
        one.name: sorted(path for path in one.rglob("*") if path.suffix.lower() in kinds)
        for one in sorted(folder.iterdir())
        if one.is_dir() and not one.name.startswith(".")
    }


def _odd_classes(folder: Path, *parts: dict[str, list[Path]]) -> Iterator[str]:
    names = sorted({*parts[0], *parts[1]})
    if len(names) < 2:
        yield f"{folder} has {len(names)} folders of classes with images (<class>/*), 2 are needed"
    for name in names:
        train, test = (len(part.get(name, ())) for part in parts)
        if not train or not test:
            yield (
                f"class {name!r} of {folder} has {train} images to train on and {test} to test: "
                "one of each is needed"
            )


def settle(study: Study, folder: Path, machine: Machine) -> None:
    """Fill the settings that the study leaves open (null), from the images.

    Raises:
        ValueError: see :func:`look`; or an image cannot be read.
    """
    found, options = look(folder), study.options
    train = [path for files in found.train.values() for path in files]
    test = [path for files in found.test.values() for path in files]
    shorter = median(_shorter(path) for path in train[:: max(1, len(train) // 200)])
    kind = _fine_tuned if options["pretrained"] else _from_scratch
    side, patch, seen = kind(study, shorter, len(train))
    epochs = options["epochs"] or min(100, max(seen // 10_000, seen // len(train)))
    options["epochs"] = epochs
    steps = max(1, epochs * len(train) // options["batch-size"])
    if machine.timm_scripts:  # timm's own train.py counts epochs, not steps
        study.trainer, study.checkpoint = None, None
        study.recipe = find("my_images").parent / "shared" / "my_images_timm.yaml"
        options |= {"num-classes": len(found.train), "steps": None, "warmup-epochs": epochs // 10}
        for variant in study.variants.values():
            if "global_pool" in variant.options.get("model-kwargs", {}):
                variant.options["gp"] = variant.options["model-kwargs"].pop("global_pool")
    else:
        steps = options["steps"] or steps
        options |= {"steps": steps, "epochs": None}
    sizes = dict.fromkeys(math.ceil(scale * side / patch) * patch for scale in SCALES)
    study.evaluations["size"].options["resolutions"] = [*sizes]
    study.evaluations["moved"].options["resolutions"] = [side]
    study.prepare["prepared"].options["side"] = side
    study.report.trained_on = [str(side)]
    assert study.answer is not None
    most = max(len(files) for files in found.test.values()) / len(test)
    study.answer.chance = 100 * (most + 3 * math.sqrt(most * (1 - most) / len(test)))
    study.answer.steps = steps
    epochs = round(steps * options["batch-size"] / len(train))
    study.answer.found = (
        f"{len(found.train)} classes, {len(train):,} images to train on and {len(test):,} to test "
        f"({found.how}), median shorter side {shorter:g} pixels. Trained at {side} × {side} pixels "
        f"in patches of {patch}, {steps:,} updates, about {epochs} epochs"
    )


def _from_scratch(study: Study, shorter: float, many: int) -> tuple[int, int, int]:
    """Fill image size and model size from the images; gives side, patch, and images to be seen."""
    options = study.options
    side = options["img-size"] or next((one for one in SIDES if one <= shorter), SIDES[-1])
    if many >= 20_000:  # timm's ViT-Ti
        shape = {"embed_dim": 192, "depth": 12, "num_heads": 3}
    else:
        shape = {"embed_dim": 64, "depth": 4, "num_heads": 2}
    given = {name: one for name, one in options["model-kwargs"].items() if one is not None}
    options["img-size"] = side
    options["model-kwargs"] = {"patch_size": side // 8, **shape, **given}
    return side, options["model-kwargs"]["patch_size"], SEEN


def _fine_tuned(study: Study, shorter: float, many: int) -> tuple[int, int, int]:
    """Fill the image size of a backbone's training, its twin, and timm's augmentation.

    Raises:
        ValueError: timm does not know the model, or it has no twin.
    """
    import timm

    import cape_plugins.timm  # noqa: F401 - registers the twins

    options = study.options
    name, dot, tag = options["model"].partition(".")
    twins = f"{name}_cape", name.replace("_rope_", "_rope_cape_", 1)
    twin = next((one for one in twins if timm.is_model(one) and one != name), None)
    if twin is None or not timm.is_model(name):
        known = ", ".join(one for one in timm.list_models("*cape*") if "dinov3" in one)
        raise ValueError(
            f"options.model={name} has no _cape twin in timm: choose a rotary backbone, such as "
            f"those of {known}"
        )
    about: Any = timm.get_pretrained_cfg(options["model"])
    side = options["img-size"] or about.input_size[-1]
    options["img-size"] = side
    patch = int(re.findall(r"patch(\d+)", name)[0])
    if "cape" in study.variants:
        study.variants["cape"].options["model"] = f"{twin}{dot}{tag}"
    if "augmented" in study.variants:  # a quarter of the image's side, in the model's own unit
        own = study.variants["augmented"].options["model-kwargs"]
        units = 1 if "rope_" not in name else side / patch / 2
        own["rope_shift_coords"] = own["rope_shift_coords"] or units / 2
    return side, patch, SEEN // 5


def _shorter(path: Path) -> int:
    try:
        with Image.open(path) as image:
            return min(image.size)
    except OSError as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error


def prepare(images: Path, out: Path, side: int, anywhere: bool = False) -> None:
    """Write the folders of the module's docstring.

    Raises:
        ValueError: images cannot be read, or are in training and test; names them.
    """
    found = look(images)
    faults: list[str] = []
    seen: dict[bytes, Path] = {}
    for part, classes in (("train", found.train), ("test", found.test)):
        every = [(name, path) for name, files in classes.items() for path in files]
        for number, (name, path) in enumerate(every):
            try:
                with Image.open(path) as opened:
                    image = opened.convert("RGB")
            except (OSError, SyntaxError, ValueError) as error:  # Pillow's kinds
                faults.append(f"{path} cannot be read as an image: {error}")
                continue
            mark = hashlib.sha256(f"{image.size}".encode() + image.tobytes()).digest()
            if part == "train":
                seen.setdefault(mark, path)
            elif mark in seen:
                faults.append(f"{path} of the test is the same image as {seen[mark]} of training")
            inside = path.relative_to(images).parts
            place = "_".join(inside[inside.index(name) + 1 :])
            _write(image, path, out / part / name / place, 2 * side)
            if part == "test" or anywhere:
                by: tuple[float, float] = DIRECTIONS[number % 4]
                if part == "train":
                    draw = random.Random(os.fsencode(path.name))
                    by = draw.uniform(-0.25, 0.25), draw.uniform(-0.25, 0.25)
                square = ImageOps.fit(image, (min(image.size),) * 2)
                at = out / {"test": "moved", "train": "anywhere"}[part] / name / f"{place}.png"
                at.parent.mkdir(parents=True, exist_ok=True)
                moved(square, by).save(at)
    complain(images, faults)


def _write(image: Image.Image, path: Path, place: Path, most: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if (shorter := min(image.size)) <= most:
        shutil.copyfile(path, place)
        return
    size = [round(one * most / shorter) for one in image.size]
    image.resize((size[0], size[1]), Image.Resampling.LANCZOS).save(f"{place}.jpg", quality=95)


def moved(image: Image.Image, by: tuple[float, float]) -> Image.Image:
    """A square image, moved to the right and down by fractions of its side; the room is filled
    with the mean of its edge."""
    pixels, side = np.asarray(image), image.width
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    r, g, b = (round(float(one)) for one in edge.mean(axis=0))
    canvas = Image.new("RGB", image.size, (r, g, b))
    canvas.paste(image, (round(by[0] * side), round(by[1] * side)))
    return canvas


if __name__ == "__main__":
    command(prepare)
