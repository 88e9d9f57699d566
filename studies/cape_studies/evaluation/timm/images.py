"""A folder of test images, and the batches of it that a model is fed, by timm's own tools."""

from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.data import ImageDataset, create_dataset, create_loader, create_transform
from torch import Tensor
from torch.utils.data import Dataset

from cape_studies.evaluation.timm.loading import Loaded
from cape_studies.evaluation.timm.size_bins import View


def open_folder(root: str, split: str | None) -> ImageDataset:
    """timm's dataset of a folder of class folders, or of its split, by timm's synonyms too.

    Without a split it is ``validation`` if there is such a folder, else the root itself.

    Raises:
        ValueError: no such folder or split, or no images in it.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise ValueError(f"no such folder of images: {root}")
    try:
        images = create_dataset("", root=root, split=split or "validation")
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if Path(images.reader.root) == folder:  # timm found no folder of the split
        inside = sorted(path.name for path in folder.iterdir() if path.is_dir())
        if split is not None:
            raise ValueError(f"{root} has no split {split!r}, it has {', '.join(inside[:10])}")
        if "train" in inside:
            raise ValueError(f"{root} holds splits ({', '.join(inside)}): choose with --split")
    return images


@cache
def own_sizes(images: ImageDataset) -> list[tuple[int, int]]:
    """(height, width) in pixels of each image, from the files' headers.

    Raises:
        ValueError: an image cannot be read.
    """
    found = []
    for path in images.filenames(absolute=True):
        try:
            with Image.open(path) as image:
                found.append((image.height, image.width))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
    return found


class Batches(Dataset):
    """Batches of images with equal views, as one dataset for timm's ``create_loader``.

    An image without a view is left out; what is beyond the model's last whole patch is cut off.

    Attributes:
        members: numbers of the images of each batch.
    """

    def __init__(
        self, images: ImageDataset, views: Sequence[View | None], loaded: Loaded, batch_size: int
    ) -> None:
        self.images, self.views = images, views
        self.patch, self.config = loaded.patch, loaded.config
        groups: dict[View, list[int]] = {}
        for i, view in enumerate(views):
            if view is not None:
                groups.setdefault(view, []).append(i)
        self.transforms = {
            view: create_transform(
                (3, view.height, view.width),
                interpolation=self.config["interpolation"],
                crop_pct=view.crop_pct,
                crop_mode=self.config["crop_mode"],
                use_prefetcher=True,  # whose loader normalises
            )
            for view in groups
        }
        self.members = [
            group[start : start + batch_size]
            for group in groups.values()
            for start in range(0, len(group), batch_size)
        ]

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, H, W) in uint8 and classes (B,).

        Raises:
            ValueError: an image cannot be read; timm would put the next one in its place.
        """
        pixels, targets = zip(*map(self._image, self.members[number]), strict=True)
        return torch.stack(pixels), torch.tensor(targets)

    def _image(self, i: int) -> tuple[Tensor, int]:
        file, target = self.images.reader[i]
        transform: Any = self.transforms[self.views[i]]  # type: ignore[index]  # no view, no batch
        try:
            with file, Image.open(file) as image:
                pixels = torch.as_tensor(transform(image.convert("RGB")))
        except OSError as error:
            path = self.images.filename(i, absolute=True)
            raise ValueError(f"{path} cannot be read: {error}") from error
        height, width = (n // p * p for n, p in zip(pixels.shape[1:], self.patch, strict=True))
        return pixels[:, :height, :width], target

    def loader(self, device: torch.device, workers: int) -> Any:
        """timm's loader of the batches, normalised on the device: (B, 3, H, W) float32 and (B,)."""
        return create_loader(
            self,  # type: ignore[arg-type]  # which wants its own kind, but only reads items
            self.config["input_size"],
            batch_size=1,
            mean=self.config["mean"],
            std=self.config["std"],
            num_workers=workers,
            collate_fn=itemgetter(0),
            pin_memory=device.type == "cuda",
            device=device,
        )
