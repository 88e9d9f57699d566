"""What the checks of parity.py share."""

from collections.abc import Callable, Iterator

from torch import Tensor

# what was compared, how far apart it is, how far it may be; None: not compared here
Found = tuple[str, float | None, float | None]
# device, whether to be quick → what it finds, one by one
Check = Callable[[str, bool], Iterator[Found]]


def error(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over that of what is wanted."""
    difference = found.detach().double().cpu() - wanted.detach().double().cpu()
    return float(difference.norm() / wanted.detach().double().norm().cpu().clamp(min=1e-30))


def other_bits(found: Tensor, wanted: Tensor) -> int:
    """How many numbers differ at all."""
    return int((found != wanted).sum())


def left_out(what: str) -> Found:
    """A check that this device cannot have."""
    return f"{what}: needs a GPU", None, None
