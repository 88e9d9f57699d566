"""A folder of test images, and its loader, by timm's own tools."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import ImageDataset, create_loader
from torch.utils.data import Dataset

from cape_studies.data.images import moved, opened
from cape_studies.evaluate.timm.loading import Loaded
from cape_studies.evaluate.timm.options import TimmOptions

ORIENTATION = 0x0112  # of EXIF; above 4 height is width
DIRECTIONS = (1, 0), (0, 1), (-1, 0), (0, -1)


def open_folder(folder: Path) -> ImageDataset:
    """timm's dataset of a folder of class folders.

    Raises:
        ValueError: no such folder, no images in it, or not in the folders of classes.
    """
    if not folder.is_dir():  # timm's own error is empty
        raise ValueError(f"no such folder of images: {folder}")
    try:
        images = ImageDataset(str(folder))
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    for name in images.filenames():  # timm would take train and test together
        if len(Path(name).parts) != 2:
            raise ValueError(
                f"{folder}: {name} is not <class>/<image>: give the folder above the classes as "
                "--data, or as a --split of it"
            )
    return images


@cache
def sizes(folder: ImageDataset, upright: bool = False) -> list[tuple[int, int]]:
    """Height and width of each image in pixels; ``upright``: as its EXIF turns it.

    Raises:
        OSError: one is no image.
        ValueError: one is larger than PIL allows.
    """
    found = []
    try:
        for path, _ in folder.reader.samples:
            with Image.open(path) as image:
                lies = upright and image.getexif().get(ORIENTATION, 1) > 4
                size = (image.width, image.height) if lies else (image.height, image.width)
                found.append(size)
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path}: {error}") from error
    return found


class Images(Dataset):
    """Some of a folder's images. A broken image is an error; timm would put the next in its place.

    Attributes:
        folder: timm's dataset.
        indices: of the images.
        by: each is moved by this part of its side, to the four directions in turn.
        upright: whether each is turned as its EXIF says.
        transform: set by timm's ``create_loader``.
    """

    transform: Any = None

    def __init__(
        self, folder: ImageDataset, indices: Sequence[int], by: float = 0.0, upright: bool = False
    ) -> None:
        self.folder = folder
        self.indices = indices
        self.by = by
        self.upright = upright

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        """Pixels (3, H, W) in uint8, and the class.

        Raises:
            ValueError: an image cannot be used.
        """
        index = self.indices[i]
        path, target = self.folder.reader.samples[index]
        image = opened(path, path, self.upright)
        if self.by:
            right, down = DIRECTIONS[index % 4]
            image = moved(image, right * self.by, down * self.by)
        return self.transform(image), target


def loader(
    folder: ImageDataset,
    indices: Sequence[int],
    shape: tuple[int, int],
    loaded: Loaded,
    options: TimmOptions,
) -> Any:
    """timm's loader; gives normalised images, (B, 3, *shape) float32, and classes, (B,), on the
    model's device."""
    names = ("interpolation", "mean", "std", "crop_pct", "crop_mode")
    return create_loader(
        Images(folder, indices, options.moved, options.upright),  # type: ignore[arg-type]  # it declares a kind of its own, but only reads items
        (3, *shape),
        batch_size=options.batch_size,
        num_workers=options.workers,
        pin_memory=loaded.device.type == "cuda",
        device=loaded.device,
        **{name: loaded.config[name] for name in names},
    )
