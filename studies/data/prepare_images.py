"""A user's images: checked, split into train and test by links, and what a study of them needs.

    python studies/data/prepare_images.py --images DIR --out prepared

``DIR`` holds ``train/<class>/*`` and ``test/<class>/*`` (or ``validation``, ``val``), or only
``<class>/*``. In the second case a fifth of each class is for testing: the images whose names have
the smallest digests, so every call takes the same images.

Writes {train,test}/<class>/, links for timm's reader, and facts.yaml.
"""

import math
import re
from pathlib import Path
from statistics import median
from typing import Any

import timm
from timm.data import create_dataset

from cape_studies.command import script
from cape_studies.data import facts
from cape_studies.data.files import complain, twice
from cape_studies.data.images import Classes, look, opened

SIDES = 128, 64, 32, 16  # pixels that models are trained at, of eight patches
SCALES = 0.75, 1, 1.5, 2  # of the side, in testing
SEEN = 100_000  # images that a short training shows a model, each at least 10 and at most 100 times


def prepare(
    images: Path,
    out: Path,
    side: int | None = None,
    patch: int | None = None,
    epochs: float | None = None,
    updates: int | None = None,
    batch_size: int | None = None,
    model: str | None = None,
) -> None:
    """Check the images, link them for timm's reader, and write the facts.

    Args:
        images: the user's folder.
        out: the folder to write.
        side: of the images in training, in pixels; default: by their size, or the model's own.
        patch: side of a patch in pixels; default: an eighth of the side, or the model's own.
        epochs: passes over the images; default: by how many there are.
        updates: of a training, in place of epochs.
        batch_size: images of an update; default: 64, or all if there are fewer.
        model: a rotary backbone of timm, to be fine-tuned.

    Raises:
        ValueError: see :func:`look`; images cannot be used, are in training and test, or are fewer
            than a batch; timm does not know the model, or it has no twin.
    """
    found = look(images)
    train, test = (
        [path for paths in part.values() for path in paths.values()]
        for part in (found.train, found.test)
    )
    batch_size = batch_size or min(64, len(train))
    if len(train) < batch_size:
        raise ValueError(
            f"{images} has {len(train)} images to train on, fewer than a batch of {batch_size}: "
            f"options.batch-size={len(train) // 2} ({found.how})"
        )
    own = _backbone(model, side) if model else {}
    sides: dict[Path, int] = {}
    faults: list[str] = []
    for path in [*train, *test]:
        try:
            sides[path] = min(opened(path, path).size)
        except ValueError as error:
            faults.append(str(error))
    complain(faults)
    complain(twice(train, test))
    shorter = median(sides[path] for path in train)
    many, few = _linked(found.train, out, "train"), _linked(found.test, out, "test")
    side = side or own.get("side") or next((one for one in SIDES if one <= shorter), SIDES[-1])
    patch = patch or own.get("patch") or max(1, side // 8)
    seen = SEEN // 5 if model else SEEN
    each = many // batch_size
    epochs = epochs or min(100, max(seen // 10_000, seen // many))
    updates = updates or max(1, round(epochs * each))
    shape = (192, 12, 3) if many >= 20_000 else (64, 4, 2)  # the former is timm's ViT-Ti
    facts.write(
        out,
        found=(
            f"{len(found.train)} classes, {many:,} images to train on and {few:,} to test "
            f"({found.how}), median shorter side {shorter:g} pixels. Trained at {side} × {side} "
            f"pixels in patches of {patch}, {updates:,} updates, {facts.passes(updates / each)}"
        ),
        majority=round(100 * max(map(len, found.test.values())) / few, 2),
        **own | {"side": side, "patch": patch, "grid": side // patch},
        **dict(zip(("embed_dim", "depth", "num_heads"), shape, strict=True)),
        updates=updates,
        resolutions=[*dict.fromkeys(math.ceil(one * side / patch) * patch for one in SCALES)],
    )


def _linked(classes: Classes, out: Path, part: str) -> int:
    """Make links to a part's images; how many timm's reader finds there."""
    for name, paths in classes.items():
        (out / part / name).mkdir(parents=True)
        for place, path in paths.items():
            (out / part / name / place).symlink_to(path.absolute())
    return len(create_dataset("", root=str(out), split=part))


def _backbone(name: str, side: int | None) -> dict[str, Any]:
    """The image size and patch of a backbone, its twin, and timm's shift of its coordinates by a
    quarter of the side, in the model's own unit.

    Raises:
        ValueError: timm does not know the model, or it has no twin.
    """
    import cape_plugins.timm  # noqa: F401 - registers the twins

    base, dot, tag = name.partition(".")
    twins = f"{base}_cape", base.replace("_rope_", "_rope_cape_", 1)
    twin = next((one for one in twins if timm.is_model(one) and one != base), None)
    if twin is None or not timm.is_model(base):
        known = ", ".join(one for one in timm.list_models("*cape*") if "dinov3" in one)
        raise ValueError(
            f"options.model={name} has no _cape twin in timm: choose a rotary backbone, such as "
            f"those of {known}"
        )
    about: Any = timm.get_pretrained_cfg(name)
    side = side or int(about.input_size[-1])
    patch = int(re.findall(r"patch(\d+)", base)[0])
    units = 1 if "rope_" not in base else side / patch / 2
    return {"side": side, "patch": patch, "twin": f"{twin}{dot}{tag}", "shift_coords": units / 2}


if __name__ == "__main__":
    script(prepare)
