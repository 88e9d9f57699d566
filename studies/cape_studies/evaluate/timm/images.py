"""A folder of test images, and its loader, by timm's own tools."""

from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import ImageDataset, create_dataset, create_loader
from torch.utils.data import Dataset

from cape_studies.evaluate.timm.loading import Loaded
from cape_studies.evaluate.timm.options import TimmOptions


def open_folder(root: str, split: str | None) -> ImageDataset:
    """timm's dataset of a folder of class folders, or of a split in it.

    A split may have timm's synonyms: ``val`` for ``validation``. Without a split it is
    ``validation`` if there is such a folder, else the root itself.

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


class Images(Dataset):
    """A folder's images in order. A broken image is an error; timm would put the next in its place.

    Attributes:
        transform: set by timm's ``create_loader``.
    """

    transform: Any = None

    def __init__(self, folder: ImageDataset) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        """Pixels (3, H, W) in uint8, and the class.

        Raises:
            ValueError: an image cannot be read.
        """
        file, target = self.folder.reader[i]
        try:
            with file, Image.open(file) as image:
                return self.transform(image.convert("RGB")), target
        except OSError as error:
            path = self.folder.filename(i, absolute=True)
            raise ValueError(f"{path} cannot be read: {error}") from error


def loader(folder: ImageDataset, size: int, loaded: Loaded, options: TimmOptions) -> Any:
    """timm's loader; gives normalised images, (B, 3, size, size) float32, and classes, (B,), on the
    model's device."""
    names = ("interpolation", "mean", "std", "crop_pct", "crop_mode")
    return create_loader(
        Images(folder),  # type: ignore[arg-type]  # it declares a kind of its own, but only reads items
        (3, size, size),
        batch_size=options.batch_size,
        num_workers=options.workers,
        pin_memory=loaded.device.type == "cuda",
        device=loaded.device,
        **{name: loaded.config[name] for name in names},
    )
