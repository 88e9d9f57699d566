"""Appendix B.2 of the paper: images binned by their own size, and ways of feeding each size.

The bins go by the shorter side of the image file. The paper asks which input size suits images of
which size; the strategies answer with a size for each image:

- ``min``, ``max``: a square of the image's shorter, longer side.
- ``original``: the image enlarged by 1 / crop_pct, then cropped back to its own height and width.
- ``original-no-crop``: the image as it is.
- ``fixed``: a square of one size for all.

Where a side is no multiple of the patch the remainder is cut off, as the authors' patch
convolution does: a grid of floor(side / patch) patches.
"""

from cape_plugins.evaluation.timm.testset import View

#: (least, most) of min(height, width) in pixels.
BINS: tuple[tuple[int, int | None], ...] = (
    (0, 100),
    (101, 150),
    (151, 200),
    (201, 250),
    (251, 300),
    (301, 350),
    (351, 384),
    (385, None),
)
LABELS = tuple(f"{least}+" if most is None else f"{least}-{most}" for least, most in BINS)
STRATEGIES = ("min", "max", "original", "original-no-crop", "fixed")

#: Largest side in pixels that min and max take in the last bin; its originals are left out.
LARGEST = 500


def bin_of(height: int, width: int) -> int:
    """Number of the bin of an image of this size in pixels."""
    side = min(height, width)
    return next(i for i, (_, most) in enumerate(BINS) if most is None or side <= most)


def view_of(
    strategy: str,
    height: int,
    width: int,
    *,
    patch: tuple[int, int],
    crop_pct: float,
    resolution: int | None = None,
) -> tuple[View, ...]:
    """How an image is fed: in one view, or in none where the protocol leaves it out.

    Args:
        strategy: one of ``STRATEGIES``.
        height, width: of the image in pixels.
        patch: (height, width) of a patch in pixels.
        crop_pct: of every strategy but ``original-no-crop``.
        resolution: of ``fixed``, in pixels; taken as it is in the last bin too.

    Raises:
        ValueError: an unknown strategy, or ``fixed`` without a resolution.
    """
    if strategy == "fixed":
        if resolution is None:
            raise ValueError("the strategy fixed needs a resolution")
        return (View(resolution, resolution, crop_pct, patch),)
    is_largest = bin_of(height, width) == len(BINS) - 1
    if strategy in ("min", "max"):
        side = min(height, width) if strategy == "min" else max(height, width)
        if is_largest:
            side = min(side, LARGEST)
        side = max(side // max(patch), 1) * max(patch)
        return (View(side, side, crop_pct, patch),)
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}: choose among {', '.join(STRATEGIES)}")
    if is_largest:
        return ()
    # an image below one patch is enlarged to it
    size = max(height, patch[0]), max(width, patch[1])
    return (View(*size, crop_pct if strategy == "original" else 1.0, patch),)
