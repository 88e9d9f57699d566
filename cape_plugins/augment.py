"""CAPE's augmentation of positions: centre, global shift Δ, local shift ε, global scale λ.

Section 3.2 of the paper, in the order of its listing. Drawing is apart from applying so that two
sequences (source and target of a translation) can share Δ and λ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
        _check_generator(generator, device)
        return draw_global(
            batch_size, ndim, self.max_global_shift, self.max_global_scale, device, generator
        )

    def draw_local_shift(
        self, positions: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw ε for each token and axis: positions' shape, floating dtype and device.

        Raises:
            ValueError: one shift per axis was set for another number of axes.
        """
        _check_generator(generator, positions.device)
        shifts = self.local_shifts(positions.shape[-1] if positions.ndim == 3 else 1)
        return draw_local(positions, list(shifts), generator)

    def local_shifts(self, axes: int) -> tuple[float, ...]:
        """The largest ε of each axis.

        Raises:
            ValueError: one shift per axis was set for another number of axes.
        """
        if not isinstance(self.max_local_shift, tuple):
            return (self.max_local_shift,) * axes
        if len(self.max_local_shift) != axes:
            raise ValueError(
                f"max_local_shift {self.max_local_shift} holds {len(self.max_local_shift)} "
                f"values, but the positions have {axes} axes"
            )
        return self.max_local_shift

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
            ValueError: positions are infinite (looked for on the CPU only) or have another shape,
                or the draw does not fit them.
        """
        if positions.ndim not in (2, 3):
            raise ValueError(
                f"positions must be (B, N) or (B, N, ndim), got shape {tuple(positions.shape)}"
            )
        check_positions(positions)
        positions = positions.to(torch.promote_types(positions.dtype, torch.float32))
        if self.mean_normalize:
            positions = centre(positions)
        if draw is None:
            return positions
        axes = positions.shape[2] if positions.ndim == 3 else 1
        self.check_draw(draw, positions.shape[0], axes)
        local = None
        if self.max_local_shift:
            local = self.draw_local_shift(positions, generator=generator)
        return augment(positions, draw, local)

    @staticmethod
    def check_draw(draw: Draw, batch_size: int, axes: int) -> None:
        """Raise ValueError unless the draw is one of as many samples and axes."""
        if draw.shift.shape != (batch_size, axes) or draw.scale.shape != (batch_size,):
            raise ValueError(
                f"{batch_size} samples of {axes} axes need a draw of shift ({batch_size}, {axes}) "
                f"and scale ({batch_size},), got {tuple(draw.shift.shape)} and "
                f"{tuple(draw.scale.shape)}"
            )


def centre(positions: Tensor) -> Tensor:
    """Subtract each sample's mean position, padding (NaN) left out: (B, N[, ndim]) → same.

    The mean is taken in float64 where the device has it: in float32 it would carry an error that
    depends on the amount of padding, and at 100 000 tokens a large one.
    """
    wide = positions if positions.device.type == "mps" else positions.double()
    return (wide - wide.nanmean(dim=1, keepdim=True)).to(positions.dtype)


# The three below are what TorchScript compiles of this file: no dataclass, no checks.


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


def draw_local(
    positions: Tensor, max_shifts: list[float], generator: torch.Generator | None
) -> Tensor:
    """ε in positions' shape; see :meth:`Augmentation.draw_local_shift`."""
    noise = _uniform(list(positions.shape), positions.device, positions.dtype, generator)
    if len(max_shifts) == 1 or min(max_shifts) == max(max_shifts):
        return noise * max_shifts[0]
    return torch.stack([noise[..., axis] * m for axis, m in enumerate(max_shifts)], dim=-1)


def augment(positions: Tensor, draw: Draw, local: Tensor | None) -> Tensor:
    """(positions + Δ + ε) · λ; positions (B, N) or (B, N, axes), ε in their shape."""
    shift, scale = draw.shift, draw.scale[:, None]
    if positions.ndim == 3:
        shift, scale = shift[:, None, :], scale[:, :, None]
    positions = positions + shift
    if local is not None:
        positions = positions + local
    return positions * scale


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


def _check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    if generator is not None and generator.device.type != device.type:
        raise ValueError(
            f"the generator lives on {generator.device.type}, the positions on {device.type}: "
            f"make it with torch.Generator({device.type!r})"
        )


def _check_number(name: str, value: Any, *, least: float) -> None:
    if not (is_number(value) and value >= least):
        raise ValueError(f"{name} must be a finite number ≥ {least:g}, got {value!r}")
