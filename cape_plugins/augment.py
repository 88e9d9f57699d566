"""CAPE's augmentation of positions: centre, global shift Δ, local shift ε, global scale λ.

Section 3.2 of the paper, in the order of its listing. Drawing and applying are two steps, so that
two sequences (source and target of a translation) can share Δ and λ.

    >>> cape = Augmentation(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.03)
    >>> moved = cape.apply(positions, cape.draw(len(positions)))    # (B, N), in training
    >>> centred = cape.apply(positions)                             # in evaluation
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cape_plugins.checks import check_count, check_positions, check_values, is_number, is_traced
from cape_plugins.constants import constant
from cape_plugins.elementwise import multiply
from cape_plugins.positions import Device, Generator, widest, with_axes

LocalShift = float | tuple[float, ...] | Tensor


class Draw(NamedTuple):
    """What CAPE draws once per sample: Δ of each axis, in the positions' unit, and λ."""

    shift: Tensor  # (B, axes)
    scale: Tensor  # (B,)


@dataclass(frozen=True)
class Identity:
    """Leaves positions as given, as ``sinpos`` does. Other augmentations override its methods."""

    def draw(
        self, batch_size: int, axes: int = 1, device: Device = None, generator: Generator = None
    ) -> Draw | None:
        """Δ and λ that several sequences may share; None where the variant has none."""
        return None

    def in_training(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
    ) -> Tensor:
        """Positions of a training step: (1 or B, N, axes), float32 or float64 → same dtype.

        ``batch_size`` is B. The other arguments are those of
        :meth:`cape_plugins.PositionalEmbedding.forward`.

        Raises:
            ValueError: the draw, the generator or the number of local shifts does not fit the
                positions, or ε is out of range (on CUDA:
                :func:`cape_plugins.checks.check_values`).
        """
        return positions

    def in_evaluation(self, positions: Tensor) -> Tensor:
        """Positions in evaluation, (1 or B, N, axes) → (1 or B, N, axes); nothing is random."""
        return positions


@dataclass(frozen=True)
class Augmentation(Identity):
    """CAPE's augmentation and its settings (paper, section 3.2); the defaults only centre.

    Attributes:
        max_global_shift: Δ is uniform in ± ``max_global_shift``, in the unit of the positions.
        max_local_shift: ε is uniform in ± ``max_local_shift``; one number, or one per axis.
        max_global_scale: λ is log-uniform in [1 / ``max_global_scale``, ``max_global_scale``].
        mean_normalize: subtract each sample's mean position first, in training and evaluation.

    Raises:
        ValueError: a shift is negative or not finite, or the scale is below 1 or not finite.
    """

    max_global_shift: float = 0.0
    max_local_shift: float | tuple[float, ...] = 0.0
    max_global_scale: float = 1.0
    mean_normalize: bool = True

    def __post_init__(self) -> None:
        _check_number("max_global_shift", self.max_global_shift, least=0.0)
        _check_number("max_global_scale", self.max_global_scale, least=1.0)
        if not isinstance(self.mean_normalize, bool):
            raise ValueError(f"mean_normalize must be True or False, got {self.mean_normalize!r}")
        _check_local_shift(self.max_local_shift)

    def draw(
        self, batch_size: int, axes: int = 1, device: Device = None, generator: Generator = None
    ) -> Draw:
        """Draw Δ and λ for each of B samples, in float32 on the device (default: the CPU).

        Raises:
            ValueError: ``batch_size`` is negative or not an integer, or the generator (default: the
                device's global one) is of another kind of device.
        """
        check_count("batch_size", batch_size, least=0)
        device = torch.device("cpu" if device is None else device)
        # one call draws both, because each call costs: Δ of all samples first, then λ
        draws = uniform([batch_size * (axes + 1)], device, torch.float32, generator)
        of_shift, of_scale = draws[: batch_size * axes], draws[batch_size * axes :]
        shift = between(self.max_global_shift, of_shift.view(batch_size, axes))
        return Draw(shift, between(math.log(self.max_global_scale), of_scale).exp())

    def apply(
        self, positions: Tensor, draw: Draw | None = None, *, generator: Generator = None
    ) -> Tensor:
        """Augment positions; without a draw only centre them, as in evaluation.

        Args:
            positions: (B, N), or (B, N, axes) with several axes. NaN marks padding and stays NaN.
            draw: Δ and λ of each sample.
            generator: source of randomness for ε. Each call draws ε anew.

        Returns:
            Positions of the shape given. float64 stays float64, integers become float64, and all
            other dtypes become float32.

        Raises:
            ValueError: positions are infinite or of another shape, or
                :meth:`Identity.in_training` raises it.
        """
        shape = positions.shape
        if len(shape) not in (2, 3):
            raise ValueError(f"positions must be (B, N) or (B, N, axes), got shape {tuple(shape)}")
        check_positions(positions)
        wide = with_axes(positions)  # (B, N, axes)
        if draw is None:
            return self.in_evaluation(wide).reshape(shape)
        return self.in_training(wide, len(wide), draw, generator=generator).reshape(shape)

    def in_training(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
    ) -> Tensor:
        """(positions - mean + Δ + ε) · λ; arguments as :meth:`Identity.in_training`."""
        device, dtype, axes = positions.device, positions.dtype, positions.shape[2]
        if draw is None:
            draw = self.draw(batch_size, axes, device, generator)
        shift, scale = tuple(draw.shift.shape), tuple(draw.scale.shape)
        if (shift, scale) != ((batch_size, axes), (batch_size,)):
            needed = f"shift ({batch_size}, {axes}) and scale ({batch_size},)"
            raise ValueError(f"the draw must have {needed}, got {shift} and {scale}")
        local: LocalShift = self.max_local_shift
        if max_local_shift is not None:  # the settings' own was checked once
            local = max_local_shift
            _check_local_shift(local)
        offset = draw.shift[:, None, :]  # (B, 1, axes)
        if self.mean_normalize:
            offset = offset - mean(positions)
        # the mean is float64, and all operations but the last are too
        moved = positions + offset  # (B, N, axes)
        if isinstance(local, Tensor) or local != 0:
            draws = uniform([batch_size, *positions.shape[1:]], device, dtype, generator)
            moved = moved + between(_per_axis(local, axes), draws)
        return multiply(moved, draw.scale[:, None, None], dtype)

    def in_evaluation(self, positions: Tensor) -> Tensor:
        """Centred where ``mean_normalize`` is on; shapes as :meth:`Identity.in_evaluation`."""
        return centre(positions) if self.mean_normalize else positions


def centre(positions: Tensor) -> Tensor:
    """Subtract each sample's mean position, padding (NaN) left out: (B, N, axes) → (B, N, axes)."""
    return (positions - mean(positions)).to(positions.dtype)


def mean(positions: Tensor) -> Tensor:
    """Each sample's mean position, padding (NaN) left out: (B, N, axes) → (B, 1, axes).

    The mean is computed in float64 where the device has it. In float32 its rounding error would
    depend on the amount of padding, and would be large for 100 000 tokens. On the CPU, cumsum adds
    the positions one by one: the order of additions in a plain sum would depend on the padding.
    On other devices cumsum is slow or not deterministic.
    """
    dtype = widest(positions.device)
    if positions.device.type == "cpu" and positions.shape[1] > 0:
        sums = positions.nan_to_num(0.0).cumsum(dim=1, dtype=dtype)  # (B, N, axes)
        total = sums.narrow(1, positions.shape[1] - 1, 1)
    else:
        total = positions.nansum(dim=1, keepdim=True, dtype=dtype)
    return total / (positions == positions).sum(dim=1, keepdim=True)


def uniform(
    shape: list[int], device: torch.device, dtype: torch.dtype, generator: Generator
) -> Tensor:
    """Uniform in [0, 1), drawn on the device; ValueError if the generator is of another kind."""
    if generator is not None and generator.device.type != device.type:
        raise ValueError(
            f"the generator lives on {generator.device.type}, the positions on {device.type}: "
            f"make it with torch.Generator({device.type!r})"
        )
    # out of place, as torch.vmap wants it; torch.compile knows the first form only
    if generator is None:
        return torch.rand(shape, device=device, dtype=dtype)
    return torch.rand(shape, device=device, dtype=dtype, generator=generator)


def between(most: float | tuple[float, ...] | Tensor, draws: Tensor) -> Tensor:
    """Draws (…, axes) that are uniform in [0, 1) as uniform in ± ``most``, one or one per axis."""
    if isinstance(most, Tensor):
        most = most.to(draws.dtype)
        return torch.lerp(-most, most, draws)
    numbers = most if isinstance(most, tuple) else (most,)
    bounds = constant(_bounds, numbers, draws.dtype, like=draws)  # (2, 1 or axes)
    return torch.lerp(bounds[0], bounds[1], draws)


def _bounds(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[-numbers, numbers], made on the device: a copy from the host would wait for the device."""
    high = torch.cat([torch.full([1], one, dtype=dtype, device=device) for one in numbers])
    return torch.stack([-high, high])


def _check_local_shift(shift: Any) -> None:
    """Raise ValueError unless ε is a number, one per axis, or a tensor, all ≥ 0."""
    if isinstance(shift, Tensor):
        rule = "max_local_shift must be finite and ≥ 0"
        check_values(shift, lambda: (shift >= 0) & (shift < math.inf), rule)
    elif not is_traced():  # there it may be a symbol, such as 1 / width
        for one in shift if isinstance(shift, tuple | list) and shift else [shift]:
            _check_number("max_local_shift", one, least=0.0)


def _per_axis(shift: LocalShift, axes: int) -> float | tuple[float, ...] | Tensor:
    """The bound of ε: a number, one per axis, or a tensor that broadcasts."""
    if isinstance(shift, Sequence) and len(shift) != axes:
        raise ValueError(
            f"max_local_shift {tuple(shift)} holds {len(shift)} values for {axes} axes"
        )
    return tuple(shift) if isinstance(shift, Sequence) else shift


def _check_number(name: str, value: Any, *, least: float) -> None:
    if not (is_number(value) and value >= least):
        raise ValueError(f"{name} must be a finite number ≥ {least:g}, got {value!r}")
