"""A user's images: checked, split into train and test by links, and what a study of them needs.

    python -m cape_studies.prepare.images --images DIR --out prepared

``DIR`` holds ``train/<class>/*`` and ``test/<class>/*`` (or ``validation``, ``val``), or only
``<class>/*``. In the second case a fifth of each class is for testing: the images whose names have
the smallest digests, so every call takes the same images.

Writes {train,test}/<class>/, links for timm's reader, and facts.yaml.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from timm.data import create_dataset

from cape_studies.command import script
from cape_studies.data import facts
from cape_studies.data.files import complain, twice
from cape_studies.data.images import Classes, look, opened


def prepare(images: Path, out: Path, group: str | None = None, model: str | None = None) -> None:
    """Check the images, link them for timm's reader, and write the facts.

    Args:
        images: the user's folder.
        out: the folder to write.
        group: a regular expression that finds the group of an image in its path below the folder;
            a fifth of the groups is then for testing alone.
        model: a rotary backbone of timm, to be fine-tuned.

    Raises:
        ValueError: see :func:`look`; images cannot be used, or show in training and test the same
            pixels; timm does not know the model, or it has no twin.
    """
    found = look(images, group)
    train, test = (
        [path for paths in part.values() for path in paths.values()]
        for part in (found.train, found.test)
    )
    own = _backbone(model) if model else {}
    sides: dict[Path, int] = {}
    pixels: dict[Path, bytes] = {}
    faults: list[str] = []
    for path in [*train, *test]:
        try:
            image = opened(path, path, upright=True)
        except ValueError as error:
            faults.append(str(error))
            continue
        sides[path] = min(image.size)
        pixels[path] = sha256(f"{image.size}".encode() + image.tobytes()).digest()
    complain(faults)
    complain(twice(train, test, pixels.__getitem__))
    shorter = median(sides[path] for path in train)
    many, few = _linked(found.train, out, "train"), _linked(found.test, out, "test")
    counts: dict[str, Any] = {"items": {"within": few, "beyond": few}}
    if found.groups:
        names = {
            f"{name}/{place}": found.groups[path]
            for name, paths in found.test.items()
            for place, path in paths.items()
        }
        counts["groups"] = dict.fromkeys(("within", "beyond"), len({*names.values()}))
        facts.write_groups(out, ({"item": k, "group": of} for k, of in names.items()))
    facts.write(
        out,
        found=(
            f"{len(found.train)} classes, {many:,} images to train on and {few:,} to test "
            f"({found.how}), median shorter side {shorter:g} pixels"
        ),
        train=many,
        shorter_side=shorter,
        majority=round(100 * max(map(len, found.test.values())) / few, 2),
        **counts,
        **({"backbone": own} if own else {}),
    )


def _linked(classes: Classes, out: Path, part: str) -> int:
    """Make links to a part's images; how many timm's reader finds there."""
    for name, paths in classes.items():
        (out / part / name).mkdir(parents=True)
        for place, path in paths.items():
            (out / part / name / place).symlink_to(path.absolute())
    return len(create_dataset("", root=str(out), split=part))


def _backbone(name: str) -> Mapping[str, Any]:
    """What a study of a backbone needs of it: its image size, patch, twin and coordinates.

    ``counts`` is whether coordinates are patches and not from -1 to 1, ``reference`` the patches a
    side that they are scaled to, and ``lacks`` whether ``ref_feat_shape`` would scale them: timm's
    rope and rope_ape count patches without a reference. Others set their own, or have no use for
    one.

    Raises:
        ValueError: timm does not know the model, or it has no twin.
    """
    from cape_plugins.timm.eva import TWINS

    base, dot, tag = name.partition(".")
    twin = {stock: ours for ours, stock in TWINS.items()}.get(base)
    if twin is None:
        known = ", ".join(one for one in TWINS.values() if "dinov3" in one)
        raise ValueError(
            f"options.model={name} has no _cape twin in timm: choose a rotary backbone, such as "
            f"{known}"
        )
    about: Any = timm.get_pretrained_cfg(name)
    with torch.device("meta"):  # without its weights
        rotary: Any = timm.create_model(base).rope
    own = getattr(rotary, "ref_feat_shape", None)
    return {
        "side": int(about.input_size[-1]),
        "patch": int(re.findall(r"patch(\d+)", base)[0]),
        "twin": f"{twin}{dot}{tag}",
        "counts": not isinstance(rotary, timm.layers.RotaryEmbeddingDinoV3),
        "reference": own[-1] if own else None,
        "lacks": own is None and isinstance(rotary, timm.layers.RotaryEmbeddingCat),
    }


if __name__ == "__main__":
    script(prepare)
