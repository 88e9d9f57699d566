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

from cape_plugins.positions import check_positions


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
        shift = _uniform((batch_size, ndim), device, torch.float32, generator)
        log_scale = _uniform((batch_size,), device, torch.float32, generator)
        return Draw(
            shift=shift * self.max_global_shift,
            scale=torch.exp(log_scale * math.log(self.max_global_scale)),
        )

    def draw_local_shift(
        self, positions: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw ε for each token and axis: positions' shape, floating dtype and device.

        Raises:
            ValueError: one shift per axis was set for another number of axes.
        """
        noise = _uniform(positions.shape, positions.device, positions.dtype, generator)
        if not isinstance(self.max_local_shift, tuple):
            return noise * self.max_local_shift
        axes = positions.shape[-1] if positions.ndim == 3 else 1
        if len(self.max_local_shift) != axes:
            raise ValueError(
                f"max_local_shift {self.max_local_shift} holds {len(self.max_local_shift)} "
                f"values, but positions of shape {tuple(positions.shape)} have {axes} axes"
            )
        if positions.ndim == 2:
            return noise * self.max_local_shift[0]
        per_axis = [noise[..., axis] * shift for axis, shift in enumerate(self.max_local_shift)]
        return torch.stack(per_axis, dim=-1)

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
        shift, scale = _broadcast(draw, positions)
        positions = positions + shift
        if self.max_local_shift:
            positions = positions + self.draw_local_shift(positions, generator=generator)
        return positions * scale


def centre(positions: Tensor) -> Tensor:
    """Subtract each sample's mean position, padding (NaN) left out: (B, N[, ndim]) → same.

    The mean is taken in float64 where the device has it: in float32 it would carry an error that
    depends on the amount of padding, and at 100 000 tokens a large one.
    """
    wide = positions if positions.device.type == "mps" else positions.double()
    return (wide - wide.nanmean(dim=1, keepdim=True)).to(positions.dtype)


def _broadcast(draw: Draw, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and scale shaped to meet (B, N) or (B, N, ndim), in no less than their dtype."""
    batch = positions.shape[0]
    axes = positions.shape[2] if positions.ndim == 3 else 1
    if draw.shift.shape != (batch, axes) or draw.scale.shape != (batch,):
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} need a draw of shift ({batch}, {axes}) "
            f"and scale ({batch},), got {tuple(draw.shift.shape)} and {tuple(draw.scale.shape)}"
        )
    if positions.ndim == 2:
        return draw.shift, draw.scale[:, None]
    return draw.shift[:, None, :], draw.scale[:, None, None]


def _uniform(
    shape: Sequence[int],
    device: torch.device | str | None,
    dtype: torch.dtype,
    generator: torch.Generator | None,
) -> Tensor:
    """Uniform in [-1, 1), drawn on the device itself."""
    if generator is not None:
        wanted = torch.device(device if device is not None else "cpu").type
        if generator.device.type != wanted:
            raise ValueError(
                f"the generator lives on {generator.device.type}, the positions on {wanted}: "
                f"make it with torch.Generator({wanted!r})"
            )
    return torch.rand(shape, device=device, dtype=dtype, generator=generator) * 2 - 1


def is_number(value: Any) -> bool:
    """Whether a setting is a finite real number."""
    # not `float | int`: Dynamo of torch 2.5 cannot trace a union
    is_real = isinstance(value, (float, int)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _check_number(name: str, value: Any, *, least: float) -> None:
    if not (is_number(value) and value >= least):
        raise ValueError(f"{name} must be a finite number ≥ {least:g}, got {value!r}")
