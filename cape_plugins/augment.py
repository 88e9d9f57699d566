"""CAPE's augmentation of positions: centre, global shift Δ, local shift ε, global scale λ.

Section 3.2 of the paper, in the order of its listing. Drawing and applying are two steps, so that
two sequences (source and target of a translation) can share Δ and λ.

    >>> cape = Augmentation(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.03)
    >>> moved = cape.in_training(positions, batch_size=8)       # (1 or B, N, axes) → (B, N, axes)
    >>> centred = cape.in_evaluation(positions)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from cape_plugins import fused
from cape_plugins.checks import check_count, check_switch, check_values, is_number, is_traced
from cape_plugins.options import POSITION, check_asked, option
from cape_plugins.part import Sizes
from cape_plugins.places import Device, Generator, widest
from cape_plugins.ranks import of_rank

LocalShift = float | tuple[float, ...] | Tensor


class Draw(NamedTuple):
    """What CAPE draws once per sample: Δ of each axis, in the positions' unit, and λ."""

    shift: Tensor  # (B, axes)
    scale: Tensor  # (B,)


@dataclass(frozen=True)
class AsGiven:
    """Leaves positions as given, as ``sinpos`` does. Augmentations override its methods.

    A subclass is a frozen dataclass, whose fields are its options (:func:`cape_plugins.option`).

    Attributes:
        sizes: of the model that it is in, where :class:`cape_plugins.Positions` makes it; their
            ``spacing`` is the distance between neighbouring tokens.
        alone: values of options with which a token's position in evaluation depends on no other
            token, as in a decoder.
    """

    sizes: Sizes | None = field(default=None, kw_only=True, repr=False, compare=False)
    alone: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def draw(
        self, batch_size: int, axes: int = 1, device: Device = None, generator: Generator = None
    ) -> Draw | None:
        """Δ and λ that several sequences may share; None where the variant has none."""
        return None

    def needs_whole_sequence(self, training: bool) -> str:
        """What to do so that a token's position depends on no other token; empty where it does not.

        In a step with a cache of keys there are no other tokens, or not all. A subclass that
        changes positions answers for itself.
        """
        step = "in_training" if training else "in_evaluation"
        if getattr(type(self), step) is getattr(AsGiven, step):
            return ""
        return (
            f"if {type(self).__name__}.{step} moves each token alone, let it say so in "
            "needs_whole_sequence"
        )

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
        :meth:`cape_plugins.Positions.forward`.

        Raises:
            ValueError: the draw, the generator or the number of local shifts does not fit the
                positions, or ε is out of range (on CUDA:
                :func:`cape_plugins.checks.check_values`).
        """
        return positions

    def in_evaluation(self, positions: Tensor) -> Tensor:
        """Positions in evaluation, (1 or B, N, axes) → (1 or B, N, axes); nothing is random."""
        return positions


@dataclass(frozen=True, kw_only=True)
class DistanceAugmentation(AsGiven):
    """CAPE's augmentation for those who see distances alone, which Δ does not change.

    ε has no default, because the right bound depends on the unit of positions; 0 is none. Training
    asks for it.

    Raises:
        ValueError: a shift is negative or not finite, or the scale is below 1 or not finite.
    """

    max_local_shift: float | tuple[float, ...] | None = option(
        None,
        "ε of a token is uniform in ± this (section 3.2)",
        unit=POSITION,
        training_only=True,
        asked="half the distance between neighbours: 0.5 tokens, 0.015 s of frames 0.03 s apart, "
        "1 / N of half an image of N patches a side; 0 is none",
    )
    max_global_scale: float = option(
        1.0, "λ of a sample is log-uniform in [1/this, this] (section 3.2)", training_only=True
    )
    mean_normalize: bool = option(
        True, "subtract each sample's mean position, in training and evaluation (section 3.2)"
    )
    alone = MappingProxyType({"mean_normalize": False})
    max_global_shift = 0.0  # without an annotation, which would make it an option

    def __post_init__(self) -> None:
        if self.max_global_shift is not None:
            _check_number("max_global_shift", self.max_global_shift, least=0.0)
        _check_number("max_global_scale", self.max_global_scale, least=1.0)
        check_switch("mean_normalize", self.mean_normalize)
        if self.max_local_shift is not None:
            _check_local_shift(self.max_local_shift)
            if self.sizes is not None:  # a list, as YAML and JSON have it, becomes a tuple
                shift = _per_axis(self.max_local_shift, self.sizes.axes)
                object.__setattr__(self, "max_local_shift", shift)

    def draw(
        self, batch_size: int, axes: int = 1, device: Device = None, generator: Generator = None
    ) -> Draw:
        """Draw Δ and λ for each of B samples, in float32 on the device (default: the CPU).

        Raises:
            ValueError: ``batch_size`` is negative or not an integer, the generator (default: the
                device's global one) is of another kind of device, or Δ is missing.
        """
        if self.max_global_shift is None:
            check_asked(self, training=True)
        check_count("batch_size", batch_size, least=0)
        device = torch.device("cpu" if device is None else device)
        # one call draws both, because each call costs: Δ of all samples first, then λ
        draws = uniform([batch_size * (axes + 1)], device, torch.float32, generator)
        of_shift, of_scale = draws[: batch_size * axes], draws[batch_size * axes :]
        shift = between(self.max_global_shift or 0.0, of_shift.view(batch_size, axes))
        return Draw(shift, between(math.log(self.max_global_scale), of_scale).exp())

    def in_training(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
    ) -> Tensor:
        """(positions - mean + Δ + ε) · λ; arguments as :meth:`AsGiven.in_training`."""
        device, dtype, axes = positions.device, positions.dtype, positions.shape[2]
        if draw is None:
            draw = self.draw(batch_size, axes, device, generator)
        shift, scale = tuple(draw.shift.shape), tuple(draw.scale.shape)
        if (shift, scale) != ((batch_size, axes), (batch_size,)):
            needed = f"shift ({batch_size}, {axes}) and scale ({batch_size},)"
            raise ValueError(f"the draw must have {needed}, got {shift} and {scale}")
        local: Any = self.max_local_shift
        if local is None:
            check_asked(self, training=True)
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
        return (moved * draw.scale[:, None, None]).to(dtype)

    def needs_whole_sequence(self, training: bool) -> str:
        """The mean is that of all tokens."""
        return "set mean_normalize=False" if self.mean_normalize else ""

    def in_evaluation(self, positions: Tensor) -> Tensor:
        """Centred where ``mean_normalize`` is on; shapes as :meth:`AsGiven.in_evaluation`."""
        return centre(positions) if self.mean_normalize else positions


@dataclass(frozen=True, kw_only=True)
class Augmentation(DistanceAugmentation):
    """CAPE's augmentation and its options (paper, section 3.2).

    Raises:
        ValueError: as :class:`DistanceAugmentation`.
    """

    max_global_shift: float | None = option(  # type: ignore[assignment]
        None,
        "Δ of a sample is uniform in ± this (section 3.2)",
        unit=POSITION,
        training_only=True,
        asked="the paper's: 5 tokens, 30 s, 0.5 of half an image; 0 is none",
    )


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
    """Uniform in [0, 1), drawn on the device; without a generator, each process its own.

    Raises:
        ValueError: the generator is of another kind of device.
    """
    if generator is not None and generator.device.type != device.type:
        raise ValueError(
            f"the generator lives on {generator.device.type}, the positions on {device.type}: "
            f"make it with torch.Generator({device.type!r})"
        )
    # out of place, as torch.vmap wants it; torch.compile knows the first form only
    if generator is None:
        return of_rank(torch.rand(shape, device=device, dtype=dtype))
    return torch.rand(shape, device=device, dtype=dtype, generator=generator)


def between(most: float | tuple[float, ...] | Tensor, draws: Tensor) -> Tensor:
    """Draws (…, axes) that are uniform in [0, 1) as uniform in ± ``most``, one or one per axis."""
    if isinstance(most, Tensor):
        most = most.to(draws.dtype)
        return torch.lerp(-most, most, draws)
    numbers = most if isinstance(most, tuple) else (most,)
    bounds = fused.constant(_bounds, numbers, draws.dtype, like=draws)  # (2, 1 or axes)
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
