"""A folder of test images in class folders, and the views of each image that a model is fed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.data import create_dataset, create_transform
from timm.data.naflex_transforms import get_image_size_for_seq
from timm.data.readers.class_map import load_class_map
from timm.utils.misc import natural_key
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class View:
    """One way of preparing an image: resize, centre crop, trim to whole patches.

    Attributes:
        height, width: of the centre crop in pixels.
        crop_pct: the crop's size over that of the resized image. 1 with the image's own size
            leaves it as it is.
        patch: (height, width) of a patch: rows and columns beyond the last whole patch are cut
            off, as a convolution with stride does.
        squash: resize to (height, width) without regard to the aspect ratio, no crop.
    """

    height: int
    width: int
    crop_pct: float
    patch: tuple[int, int] = (1, 1)
    squash: bool = False


@dataclass(frozen=True)
class Folder:
    """Test images in class folders.

    Attributes:
        root: holds the class folders; the split is in it.
        paths: of the images, in timm's order.
    """

    root: str
    paths: list[str]

    @property
    def classes(self) -> set[str]:
        """Names of the class folders that hold images."""
        return {Path(path).parent.name for path in self.paths}

    @property
    def empty(self) -> set[str]:
        """Names of the class folders that hold no images."""
        root = Path(self.root)
        full = {Path(path).relative_to(root).parts[0] for path in self.paths}
        return {
            folder.name
            for folder in root.iterdir()
            if folder.is_dir() and folder.name not in full and not folder.name.startswith(".")
        }

    @cached_property
    def sizes(self) -> list[tuple[int, int]]:
        """(height, width) in pixels of each image, from the files' headers.

        Raises:
            ValueError: an image cannot be read.
        """
        return [_size(path) for path in self.paths]


def open_folder(root: str, split: str | None) -> Folder:
    """Find the images of a folder.

    Args:
        root: holds the class folders, or a folder named like the split that does.
        split: timm's synonyms work (val, valid, validation, …). Default: ``validation`` if there
            is such a folder, else the root itself.

    Raises:
        ValueError: no such folder or split, or no images in it.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise ValueError(f"no such folder of images: {root}")
    try:
        dataset = create_dataset("", root=root, split=split or "validation")
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if Path(dataset.reader.root) == folder:
        inside = sorted(path.name for path in folder.iterdir() if path.is_dir())
        if split is not None:
            raise ValueError(f"{root} has no split {split!r}, it has {', '.join(inside[:10])}")
        if "train" in inside:
            raise ValueError(f"{root} holds splits ({', '.join(inside)}): choose with --split")
    return Folder(str(dataset.reader.root), [path for path, _ in dataset.reader.samples])


def class_index(
    folders: Collection[str],
    num_classes: int,
    *,
    empty: Collection[str] = (),
    class_map: dict[str, int] | None = None,
    allow_missing: bool = False,
) -> dict[str, int]:
    """Class folder → output of the model.

    As many folders as outputs are taken in timm's natural order, so 0 … 999 (ImageNet-v2) in
    numeric order. With fewer, folders named by numbers are taken at their word; others need a
    class map, because nothing says which are missing.

    Args:
        folders: names of the class folders that hold images.
        num_classes: outputs of the model.
        empty: names of class folders that hold none; they count in the order.
        class_map: names → outputs, instead of the above.
        allow_missing: some classes may have no folder.

    Raises:
        ValueError: missing classes that are not allowed or cannot be told, or too many.
    """
    names = sorted(folders, key=natural_key)
    if class_map is not None:
        unknown = [name for name in names if name not in class_map]
        if unknown:
            raise ValueError(f"class folders that the class map does not have: {_some(unknown)}")
        beyond = [name for name in names if not 0 <= class_map[name] < num_classes]
        if beyond:
            raise ValueError(
                f"the class map leads beyond the model's {num_classes} classes: {_some(beyond)}"
            )
        index = dict(class_map)
        missing = [name for name in class_map if name not in set(names)]
    elif len(names) == num_classes:
        return {name: i for i, name in enumerate(names)}
    elif len(names) + len(empty) == num_classes:
        index = {name: i for i, name in enumerate(sorted([*names, *empty], key=natural_key))}
        missing = sorted(empty, key=natural_key)
    elif len(names) > num_classes:
        raise ValueError(
            f"{len(names)} class folders ({_some(names)}), but the model has {num_classes} classes"
        )
    elif all(name.isdecimal() and int(name) < num_classes for name in names):
        index = {name: int(name) for name in names}
        missing = [str(i) for i in range(num_classes) if i not in set(index.values())]
    else:
        without = f" ({_some(sorted(empty))} without)" if empty else ""
        raise ValueError(
            f"{len(names)} class folders with images{without}, but the model has {num_classes} "
            "classes: give the others their folders, or name the classes with --class-map FILE"
        )
    if missing and not allow_missing:
        what = "empty" if set(missing) <= set(empty) else "missing or empty"
        raise ValueError(
            f"{len(missing)} of {num_classes} class folders are {what}: "
            f"{_some(missing)}; --allow-missing-classes tests the others"
        )
    return {name: index[name] for name in names}


def read_class_map(path: Path | None, root: str) -> dict[str, int] | None:
    """timm's class map: a ``.txt`` with one name a line, or a ``.pkl`` dict; None without one.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return None if path is None else load_class_map(str(path), root)
    except (AssertionError, OSError, ValueError) as error:
        raise ValueError(f"class map {path}: {error}") from error


class ViewDataset(Dataset):
    """Test images as their model sees them, in uint8; normalising is done on the device.

    Args:
        folder: the images.
        index: class folder → output of the model.
        views: of each image, none to leave it out; images with equal views share batches.
        interpolation: as in timm.
    """

    def __init__(
        self,
        folder: Folder,
        index: dict[str, int],
        views: Sequence[tuple[View, ...]],
        interpolation: str,
    ) -> None:
        self.paths = folder.paths
        self.targets = [index[Path(path).parent.name] for path in self.paths]
        self.views = views
        self.interpolation = interpolation
        if len(views) != len(self.paths):
            raise ValueError(f"{len(self.paths)} images need their views, got {len(views)}")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[list[Tensor], int, int]:
        """The views (C, H, W) in uint8, the class, and the image's number."""
        try:
            with Image.open(self.paths[i]) as file:
                image = file.convert("RGB")
        except OSError as error:  # timm would put the next image in its place
            raise ValueError(f"{self.paths[i]} cannot be read: {error}") from error
        views = [prepare(image, view, self.interpolation) for view in self.views[i]]
        return views, self.targets[i], i

    def batches(self, batch_size: int) -> list[list[int]]:
        """Images of equal views, in order, at most ``batch_size`` at once."""
        groups: dict[tuple[View, ...], list[int]] = {}
        for i, views in enumerate(self.views):
            if views:
                groups.setdefault(views, []).append(i)
        return [
            members[start : start + batch_size]
            for members in groups.values()
            for start in range(0, len(members), batch_size)
        ]

    def loader(
        self,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> DataLoader:
        """Batches of this rank: no image twice, and the same batches for any number of ranks."""
        mine = self.batches(batch_size)[rank::world_size]
        return DataLoader(self, batch_sampler=mine, num_workers=workers, pin_memory=pin_memory)


def prepare(image: Image.Image, view: View, interpolation: str) -> Tensor:
    """A view of an RGB image: (3, height, width) in uint8, trimmed to whole patches."""
    pixels = torch.as_tensor(_transform(view, interpolation)(image))
    rows = view.height // view.patch[0] * view.patch[0]
    columns = view.width // view.patch[1] * view.patch[1]
    return pixels[:, :rows, :columns]


@cache
def _transform(view: View, interpolation: str) -> Any:
    size = (3, view.height, view.width)
    # use_prefetcher leaves out the normalisation, which is done on the device
    return create_transform(
        size,
        interpolation=interpolation,
        crop_pct=view.crop_pct,
        crop_mode="squash" if view.squash else None,
        use_prefetcher=True,
    )


def view_of_length(size: tuple[int, int], length: int, patch: tuple[int, int]) -> View:
    """An image of (height, width) pixels with at most ``length`` patches, as timm's NaFlex has it.

    Raises:
        ValueError: an image so long that no size of it has so few patches.
    """
    try:
        _, (height, width) = get_image_size_for_seq(size, patch, length)
    except ValueError as error:
        raise ValueError(
            f"an image of {size[0]} × {size[1]} cannot have {length} patches: {error}"
        ) from error
    return View(height, width, 1.0, patch, squash=True)


def check_normalisation(mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError unless pixels in [0, 1] can have this mean and divisor per channel."""
    for name, values, fits in (
        ("--mean takes numbers from 0 to 1", mean, lambda x: 0 <= x <= 1),
        ("--std takes numbers above 0, at most 1", std, lambda x: 0 < x <= 1),
    ):
        wrong = [value for value in values if not fits(value)]
        if wrong:
            raise ValueError(f"{name} (pixels are taken as 0 to 1), got {wrong[0]:g}")


def normalise(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, 3, H, W) → float32, as timm's PrefetchLoader does it."""
    both = [[one * 255 for one in values] for values in (mean, std)]
    shift, scale = torch.tensor(both, device=pixels.device).view(2, 1, -1, 1, 1)
    return (pixels.float() - shift) / scale


def _size(path: str) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names) - most} more)"
