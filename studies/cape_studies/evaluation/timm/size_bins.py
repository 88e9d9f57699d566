"""Appendix B.2 of the paper: images binned by their own size, and ways of feeding each bin.

The bins go by s, the shorter side of the image file; images below the first bin are left out. The
strategies:

- ``min``, ``max``: all images of a bin as squares of the bin's least, greatest s.
- ``original``: each image enlarged by 1 / crop_pct, then cropped back to its own height and width.
- ``original-no-crop``: each image as it is.
- ``fixed``: all images as squares of one size.

Where a side is no multiple of the patch the rest is cut off, as by the authors' convolution.
"""

from itertools import pairwise
from typing import Literal, NamedTuple, get_args

Strategy = Literal["min", "max", "original", "original-no-crop", "fixed"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

#: (least, greatest) s in pixels. The last bin holds all larger images too: its greatest is that
#: of the strategy ``max`` alone.
_EDGES = (54, 101, 151, 201, 251, 301, 351, 385, 501)
BINS = [(least, above - 1) for least, above in pairwise(_EDGES)]
LABELS = (*(f"{least}-{most}" for least, most in BINS[:-1]), f"{BINS[-1][0]}+")


class View(NamedTuple):
    """One way of preparing an image: resize, then a centre crop.

    Height and width are the crop's, in pixels; ``crop_pct`` is its size over the resized image's: 1
    with the image's own size leaves it as it is.
    """

    height: int
    width: int
    crop_pct: float


def bin_of(height: int, width: int) -> int | None:
    """Number of the bin of an image of this size in pixels; None below the first."""
    return next((i for i in range(len(BINS) - 1, -1, -1) if min(height, width) >= BINS[i][0]), None)


def view_of(
    strategy: str, height: int, width: int, crop_pct: float, resolution: int | None
) -> View | None:
    """How an image of this size in pixels is fed; None where the protocol leaves it out.

    ``resolution`` is the side of ``fixed``, in the last bin too; the others have their own.
    """
    number = bin_of(height, width)
    if number is None or (strategy.startswith("original") and number == len(BINS) - 1):
        return None
    if strategy.startswith("original"):
        return View(height, width, crop_pct if strategy == "original" else 1.0)
    side = resolution or BINS[number][strategy == "max"]
    return View(side, side, crop_pct)
