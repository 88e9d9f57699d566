"""Appendix B.2 of the paper: images binned by their own size, and ways of feeding each bin.

The bins go by s, the shorter side of the image file. The paper asks which input size suits images
of which size; the strategies answer:

- ``min``, ``max``: all images of a bin as squares of the bin's least, greatest s.
- ``original``: each image enlarged by 1 / crop_pct, then cropped back to its own height and width.
- ``original-no-crop``: each image as it is.
- ``fixed``: all images as squares of one size.

Where a side is no multiple of the patch the remainder is cut off, as the authors' patch
convolution does: a grid of floor(side / patch) patches. Images below the first bin are left out.
"""

from typing import Literal, NamedTuple, get_args

Strategy = Literal["min", "max", "original", "original-no-crop", "fixed"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

#: (least, greatest) s in pixels. The last bin holds all larger images too: its greatest is that
#: of the strategy ``max`` alone.
BINS: tuple[tuple[int, int], ...] = (
    (54, 100),
    (101, 150),
    (151, 200),
    (201, 250),
    (251, 300),
    (301, 350),
    (351, 384),
    (385, 500),
)
LABELS = (*(f"{least}-{most}" for least, most in BINS[:-1]), f"{BINS[-1][0]}+")


class View(NamedTuple):
    """One way of preparing an image: resize, then a centre crop.

    Attributes:
        height, width: of the crop in pixels.
        crop_pct: the crop's size over that of the resized image. 1 with the image's own size
            leaves it as it is.
    """

    height: int
    width: int
    crop_pct: float


def bin_of(height: int, width: int) -> int | None:
    """Number of the bin of an image of this size in pixels; None below the first."""
    return next((i for i in range(len(BINS) - 1, -1, -1) if min(height, width) >= BINS[i][0]), None)


def view_of(
    strategy: str, height: int, width: int, *, crop_pct: float, resolution: int | None = None
) -> View | None:
    """How an image is fed; None where the protocol leaves it out.

    Args:
        strategy: one of ``STRATEGIES``.
        height, width: of the image in pixels.
        crop_pct: of every strategy but ``original-no-crop``.
        resolution: of ``fixed``, in pixels; taken as it is in the last bin too.
    """
    number = bin_of(height, width)
    if number is None or (strategy.startswith("original") and number == len(BINS) - 1):
        return None
    if strategy.startswith("original"):
        return View(height, width, crop_pct if strategy == "original" else 1.0)
    side = resolution if strategy == "fixed" else None  # the others have their own
    side = side or BINS[number][strategy == "max"]
    return View(side, side, crop_pct)
