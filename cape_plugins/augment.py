"""CAPE's augmentation of positions: centre, global shift Δ, local shift ε, global scale λ.

Section 3.2 of the paper, in the order of its listing. Drawing is apart from applying so that two
sequences (source and target of a translation) can share Δ and λ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cape_plugins.positions import check_positions, is_number


class Draw(NamedTuple):
    """What CAPE draws once per sample.

    Attributes:
        shift: (B, ndim), the global shift Δ of each axis, in the unit of the positions.
        scale: (B,), the global scale λ, shared by the axes.
    """

    shift: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Augmentation:
    """The settings of CAPE's augmentation; the defaults only centre.

    Attributes:
        max_global_shift: Δ is uniform in ± this, in the unit of the positions.
        max_local_shift: ε is uniform in ± this; one number, or one per axis.
        max_global_scale: λ is log-uniform in [1 / this, this].
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
        if isinstance(self.max_local_shift, Sequence) and not isinstance(self.max_local_shift, str):
            if not self.max_local_shift:
                raise ValueError("max_local_shift must be a number or one per axis, got none")
            for shift in self.max_local_shift:
                _check_number("max_local_shift", shift, least=0.0)
            object.__setattr__(self, "max_local_shift", tuple(self.max_local_shift))
        else:
            _check_number("max_local_shift", self.max_local_shift, least=0.0)

    def draw(
        self,
        batch_size: int,
        ndim: int = 1,
        *,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Draw Δ and λ for each sample.

        Args:
            batch_size: B.
            ndim: number of axes of a position (1 for sequences, 2 for images).
            device: where to draw. Default: the CPU.
            generator: source of randomness on that device. Default: the device's global one.

        Returns:
            float32 shift (B, ndim), uniform in ± ``max_global_shift``, and scale (B,),
            log-uniform in [1 / ``max_global_scale``, ``max_global_scale``].

        Raises:
            ValueError: the generator lives on another kind of device.
        """
        device = torch.device("cpu" if device is None else device)
        check_generator(generator, device)
        return draw_global(
            batch_size, ndim, self.max_global_shift, self.max_global_scale, device, generator
        )

    def apply(
        self,
        positions: Tensor,
        draw: Draw | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Augment positions; without a draw only centre them (evaluation).

        Args:
            positions: (B, N), or (B, N, ndim) with several axes; NaN marks padding and stays.
            draw: Δ and λ of each sample. The local shift is drawn anew at every call.
            generator: source of randomness for the local shift.

        Returns:
            positions in their dtype, float32 at least.

        Raises:
            ValueError: positions are infinite (on CUDA see
                :func:`cape_plugins.positions.check_values`) or have another shape, or the draw
                or one shift per axis does not fit them.
        """
        if positions.ndim not in (2, 3):
            raise ValueError(
                f"positions must be (B, N) or (B, N, ndim), got shape {tuple(positions.shape)}"
            )
        check_positions(positions)
        check_generator(generator, positions.device)
        moved = positions if positions.ndim == 3 else positions[..., None]
        moved = moved.to(torch.promote_types(moved.dtype, torch.float32))
        if self.mean_normalize:
            moved = centre(moved)
        if draw is not None:
            batch, _, axes = moved.shape
            check_draw(draw, batch, axes)
            local = per_axis(list(self._local_shifts(axes)), moved.device)
            moved = augment(moved, local, draw, generator)
        return moved.reshape(positions.shape)

    def _local_shifts(self, axes: int) -> tuple[float, ...]:
        if not isinstance(self.max_local_shift, tuple):
            return (self.max_local_shift,) * axes
        if len(self.max_local_shift) != axes:
            raise ValueError(
                f"max_local_shift {self.max_local_shift} holds {len(self.max_local_shift)} "
                f"values, but the positions have {axes} axes"
            )
        return self.max_local_shift


class AsGiven(nn.Module):
    """Leaves positions as they are (sinpos): what a variant's ``augment`` module looks like.

    Args:
        settings: of CAPE; all variants are built alike.
        span: the ends of the range that random positions come from.
        spread: whether evaluation spreads those over it.
    """

    def __init__(
        self, settings: Augmentation, span: tuple[float, float] = (0.0, 1.0), spread: bool = True
    ) -> None:
        super().__init__()

    def draw(self, batch_size: int, axes: int, device: torch.device) -> Draw | None:
        """Δ and λ that several sequences may share, or None where nothing is drawn."""
        return None

    def forward(
        self,
        positions: Tensor,
        batch: int,
        max_local_shift: Tensor | None = None,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Positions → positions.

        Args:
            positions: (B, N, axes), or (1, N, axes) to share them; float32 or float64.
            batch: B.
            max_local_shift: the largest ε, broadcastable to (B, N, axes); in training.
            draw: Δ and λ. Default: drawn here, in training.
            generator: source of randomness.

        Returns:
            (1 or B, N, axes) in the positions' dtype.
        """
        return positions


class Cape(AsGiven):
    """Centres positions, and in training shifts and scales them; TorchScript compiles it."""

    def __init__(
        self, settings: Augmentation, span: tuple[float, float] = (0.0, 1.0), spread: bool = True
    ) -> None:
        super().__init__(settings)
        # plain numbers: TorchScript knows no dataclass
        self.max_global_shift = float(settings.max_global_shift)
        self.max_global_scale = float(settings.max_global_scale)
        self.mean_normalize = settings.mean_normalize

    def draw(self, batch_size: int, axes: int, device: torch.device) -> Draw | None:
        """Δ and λ of each sample in training."""
        if not self.training:
            return None
        return draw_global(
            batch_size, axes, self.max_global_shift, self.max_global_scale, device, None
        )

    def forward(
        self,
        positions: Tensor,
        batch: int,
        max_local_shift: Tensor | None = None,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Centre and, in training, augment; see :class:`AsGiven`."""
        if self.mean_normalize:
            positions = centre(positions)
        if not self.training:
            return positions
        assert max_local_shift is not None
        axes = positions.shape[2]
        if draw is None:
            draw = draw_global(
                batch,
                axes,
                self.max_global_shift,
                self.max_global_scale,
                positions.device,
                generator,
            )
        positions = positions.expand(batch, positions.shape[1], axes)
        return augment(positions, max_local_shift, draw, generator)


def centre(positions: Tensor) -> Tensor:
    """Subtract each sample's mean position, padding (NaN) left out: (B, N[, ndim]) → same.

    The mean is taken in float64 where the device has it: in float32 it would carry an error that
    depends on the amount of padding, and at 100 000 tokens a large one. On the CPU it is summed one
    by one, because the order of another sum would depend on the padding too.
    """
    wide = positions if positions.device.type == "mps" else positions.double()
    if positions.device.type == "cpu" and positions.shape[1] > 0:
        # elsewhere cumsum is slow, or not deterministic
        real = ~wide.isnan()
        total = wide.masked_fill(~real, 0.0).cumsum(dim=1).narrow(1, positions.shape[1] - 1, 1)
        mean = total / real.sum(dim=1, keepdim=True)
    else:
        mean = wide.nanmean(dim=1, keepdim=True)
    return (wide - mean).to(positions.dtype)


def draw_global(
    batch_size: int,
    axes: int,
    max_shift: float,
    max_scale: float,
    device: torch.device,
    generator: torch.Generator | None,
) -> Draw:
    """Δ and λ; see :meth:`Augmentation.draw`."""
    shift = _uniform([batch_size, axes], device, torch.float32, generator)
    log_scale = _uniform([batch_size], device, torch.float32, generator)
    return Draw(shift * max_shift, torch.exp(log_scale * math.log(max_scale)))


def augment(
    positions: Tensor, max_local_shift: Tensor, draw: Draw, generator: torch.Generator | None
) -> Tensor:
    """(positions + Δ + ε) · λ, ε drawn here for each token and axis.

    Args:
        positions: (B, N, axes), float32 or float64.
        max_local_shift: the largest ε, broadcastable to the positions.
        draw: Δ and λ.
        generator: source of randomness.
    """
    noise = _uniform(list(positions.shape), positions.device, positions.dtype, generator)
    noise = noise * max_local_shift.to(noise.dtype)
    return (positions + draw.shift[:, None, :] + noise) * draw.scale[:, None, None]


def per_axis(numbers: list[float], device: torch.device) -> Tensor:
    """(axes,) float64, made on the device: copied there it would be waited for."""
    wide = torch.float32 if device.type == "mps" else torch.float64
    return torch.cat([torch.full([1], n, device=device, dtype=wide) for n in numbers])


def _uniform(
    shape: list[int],
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator | None,
) -> Tensor:
    """Uniform in [-1, 1), drawn on the device itself."""
    if generator is None:  # the other overload takes no symbolic sizes under torch.compile
        return torch.rand(shape, device=device, dtype=dtype) * 2 - 1
    return torch.rand(shape, device=device, dtype=dtype, generator=generator) * 2 - 1


def check_draw(draw: Draw, batch_size: int, axes: int) -> None:
    """Raise ValueError unless the draw is one of as many samples and axes."""
    if draw.shift.shape != (batch_size, axes) or draw.scale.shape != (batch_size,):
        raise ValueError(
            f"{batch_size} samples of {axes} axes need a draw of shift ({batch_size}, {axes}) "
            f"and scale ({batch_size},), got {tuple(draw.shift.shape)} and "
            f"{tuple(draw.scale.shape)}"
        )


def check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    """Raise ValueError unless the generator lives on the device's kind."""
    if generator is not None and generator.device.type != device.type:
        raise ValueError(
            f"the generator lives on {generator.device.type}, the positions on {device.type}: "
            f"make it with torch.Generator({device.type!r})"
        )


def _check_number(name: str, value: Any, *, least: float) -> None:
    if not (is_number(value) and value >= least):
        raise ValueError(f"{name} must be a finite number ≥ {least:g}, got {value!r}")
