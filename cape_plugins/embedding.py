"""The modules that hosts plug in: content + positional embedding, one forward for all variants.

Neither keeps a buffer: frequencies are recomputed, so ``.half()`` and ``.to_empty()`` leave them
alone. The only state is the table of ``abspos``. TorchScript compiles both, on the plain path.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins.augment import (
    Augmentation,
    Draw,
    augment,
    centre,
    draw_global,
    draw_local,
)
from cape_plugins.fused import add_augmented_sinusoid, add_embedding, add_sinusoid
from cape_plugins.positions import can_look_at, check_positive, grid_positions
from cape_plugins.sinusoid import check_dim, check_frequencies, embed_line, embed_plane

VARIANTS = ("nopos", "abspos", "sinpos", "cape")


class PositionalEmbedding1d(nn.Module):
    """Adds positions to a sequence.

    - ``nopos`` adds nothing.
    - ``abspos`` adds learnable vectors, looked up by the position rounded to the nearest integer:
      give it indices (tokens, frames), not seconds.
    - ``sinpos`` adds sinusoids of the positions as given.
    - ``cape`` centres the positions, in training augments them, then adds their sinusoids.

    Args:
        dim: channels, even.
        variant: one of the above.
        max_global_shift, max_local_shift, max_global_scale, mean_normalize: CAPE's settings, see
            :class:`cape_plugins.Augmentation`; the defaults only centre, because the right
            shifts depend on the unit of the positions.
        base, scale: frequencies, see :func:`cape_plugins.sinusoid_1d`.
        max_length: vectors in the table of ``abspos``, which needs it.
        overflow: what ``abspos`` does beyond its table: ``"wrap"`` takes the index modulo
            ``max_length`` (as the paper in speech), ``"error"`` raises (as fairseq).

    Raises:
        ValueError: any value is out of range, whatever the variant.
    """

    def __init__(
        self,
        dim: int,
        variant: str = "cape",
        *,
        max_global_shift: float = 0.0,
        max_local_shift: float = 0.0,
        max_global_scale: float = 1.0,
        mean_normalize: bool = True,
        base: float = 10_000.0,
        scale: float = 1.0,
        max_length: int | None = None,
        overflow: str = "wrap",
    ) -> None:
        super().__init__()
        check_variant(variant)
        check_dim(dim)
        check_frequencies(base, scale)
        if overflow not in ("wrap", "error"):
            raise ValueError(f"overflow must be 'wrap' or 'error', got {overflow!r}")
        if max_length is None and variant == "abspos":
            raise ValueError("abspos needs max_length, the number of vectors in its table")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be ≥ 1, got {max_length}")
        self.dim = dim
        self.variant = variant
        self.base = base
        self.scale = scale
        self.max_length = max_length
        self.overflow = overflow
        self.augmentation = Augmentation(
            max_global_shift, max_local_shift, max_global_scale, mean_normalize
        )
        # the same settings as plain numbers, for TorchScript
        self.max_global_shift = float(max_global_shift)
        self.max_local_shift = float(max_local_shift)
        self.max_global_scale = float(max_global_scale)
        self.mean_normalize = mean_normalize
        self.register_parameter("table", None)
        if variant == "abspos":
            assert max_length is not None
            self.table = nn.Parameter(torch.empty(max_length, dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def forward(
        self,
        content: Tensor,
        positions: Tensor,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Add the embedding of the positions.

        Args:
            content: (B, N, dim), any float dtype.
            positions: (B, N), or (1, N) to share them; NaN marks padding, to which nothing is
                added.
            draw: Δ and λ of each sample, for sequences that share them. Default: drawn here.
                Used by ``cape`` in training only.
            generator: source of randomness in training.

        Returns:
            (B, N, dim) in content's dtype; the sum is taken in float32 at least.

        Raises:
            ValueError: shapes that do not fit; infinite positions, or with ``overflow="error"``
                positions beyond the table (both looked for on the CPU only).
        """
        batch, length = _check_content(content, self.dim)
        if positions.ndim != 2 or positions.shape[1] != length:
            raise ValueError(
                f"content of shape {list(content.shape)} needs positions [{batch}, {length}], "
                f"got {list(positions.shape)}"
            )
        if positions.shape[0] != 1 and positions.shape[0] != batch:
            raise ValueError(
                f"positions for {positions.shape[0]} samples do not fit a batch of {batch}"
            )
        if self.variant == "nopos":
            return content
        if self.table is not None:
            return add_embedding(content, self._look_up(positions, self.table))
        if torch.jit.is_scripting():
            if self.variant == "cape":
                positions = self._augment(positions.expand(batch, length), draw, generator)
            return add_embedding(content, embed_line(positions, self.dim, self.base, self.scale))
        else:
            base, scale = self.base, self.scale
            if self.variant == "cape" and self.training:
                return add_augmented_sinusoid(
                    content,
                    positions[..., None],
                    self.augmentation,
                    draw,
                    generator=generator,
                    base=base,
                    scale=scale,
                )
            if self.variant == "cape":
                positions = self.augmentation.apply(positions)
            return add_sinusoid(content, positions[..., None], base=base, scale=scale)

    def _augment(
        self, positions: Tensor, draw: Draw | None, generator: torch.Generator | None
    ) -> Tensor:
        """:class:`Augmentation` for TorchScript, which knows no dataclass."""
        positions = positions.to(torch.promote_types(positions.dtype, torch.float32))
        if self.mean_normalize:
            positions = centre(positions)
        if not self.training:
            return positions
        if draw is None:
            draw = draw_global(
                positions.shape[0],
                1,
                self.max_global_shift,
                self.max_global_scale,
                positions.device,
                generator,
            )
        return augment(positions, draw, draw_local(positions, [self.max_local_shift], generator))

    def _look_up(self, positions: Tensor, table: Tensor) -> Tensor:
        padding = positions.isnan()
        index = positions.masked_fill(padding, 0.0).round().long()
        rows = table.shape[0]
        if self.overflow == "wrap":
            index = index.remainder(rows)
        elif not torch.jit.is_scripting():  # there the look-up itself fails
            _check_index(index, rows)
        return F.embedding(index, table).masked_fill(padding[..., None], 0.0)

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return f"dim={self.dim}, variant={self.variant!r}, scale={self.scale}, {self.augmentation}"


class PositionalEmbedding2d(nn.Module):
    """Adds positions to the patches of an image of any size.

    The variants are those of :class:`PositionalEmbedding1d`; positions are those of
    :func:`cape_plugins.patch_grid`. Centring is left out because a grid is centred.

    Args:
        dim: channels, even.
        variant: ``nopos``, ``abspos``, ``sinpos`` or ``cape``.
        max_global_shift: Δ of each axis is uniform in ± this; 0.5 (section 4.1).
        max_local_shift: ε is uniform in ± this, one number or (height, width). Default: 1 / N per
            axis, N patches along it (section 4.1), so that neighbours keep their order.
        max_global_scale: λ is log-uniform in [1 / this, this]; 1.4 (section 4.1).
        extent: the paper's γ (Table 6): the grid runs from -extent to extent. The paper changes
            it at evaluation only.
        grid: (height, width) in patches of the table of ``abspos``, which needs it; other sizes
            interpolate it (bicubic, antialiased, as timm does).

    Raises:
        ValueError: any value is out of range, whatever the variant.
    """

    def __init__(
        self,
        dim: int,
        variant: str = "cape",
        *,
        max_global_shift: float = 0.5,
        max_local_shift: float | tuple[float, float] | None = None,
        max_global_scale: float = 1.4,
        extent: float = 1.0,
        grid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_variant(variant)
        check_dim(dim)
        check_positive("extent", extent)
        if grid is None and variant == "abspos":
            raise ValueError("abspos needs grid, the (height, width) of its table in patches")
        if grid is not None and (len(grid) != 2 or min(grid) < 1):
            raise ValueError(f"grid must be (height, width), both ≥ 1, got {grid}")
        # check the settings now; the local shift may depend on the grid of each forward
        Augmentation(max_global_shift, max_local_shift or 0.0, max_global_scale)
        if isinstance(max_local_shift, tuple | list) and len(max_local_shift) != 2:
            raise ValueError(
                f"max_local_shift must be a number or (height, width), got {max_local_shift}"
            )
        self.dim = dim
        self.variant = variant
        self.max_global_shift = float(max_global_shift)
        self.max_local_shift: tuple[float, float] | None = None
        if isinstance(max_local_shift, (tuple, list)):
            self.max_local_shift = (float(max_local_shift[0]), float(max_local_shift[1]))
        elif max_local_shift is not None:
            self.max_local_shift = (float(max_local_shift), float(max_local_shift))
        self.max_global_scale = float(max_global_scale)
        self.extent = float(extent)
        self.grid = grid and (int(grid[0]), int(grid[1]))
        self.register_parameter("table", None)
        if variant == "abspos":
            assert grid is not None
            self.table = nn.Parameter(torch.empty(1, grid[0] * grid[1], dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def forward(
        self,
        content: Tensor,
        grid: tuple[int, int],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Add the embedding of the patches' positions.

        Args:
            content: (B, H · W, dim) patches, row-major, any float dtype.
            grid: (H, W) in patches.
            generator: source of randomness in training.

        Returns:
            (B, H · W, dim) in content's dtype; the sum is taken in float32 at least.

        Raises:
            ValueError: shapes that do not fit.
        """
        height, width = grid
        batch, patches = _check_content(content, self.dim)
        if patches != height * width:
            raise ValueError(
                f"a grid of {height} × {width} has {height * width} patches, "
                f"content of shape {list(content.shape)} has {patches}"
            )
        if self.variant == "nopos":
            return content
        if self.table is not None:
            return add_embedding(content, self._resize_table(self.table, height, width))
        positions = grid_positions(height, width, self.extent, content.device)[None]
        if torch.jit.is_scripting():
            if self.variant == "cape" and self.training:
                positions = self._augment(positions.expand(batch, -1, -1), height, width, generator)
            return add_embedding(content, embed_plane(positions, self.dim))
        else:
            if self.variant == "cape" and self.training:
                augmentation = self._augmentation(height, width)
                return add_augmented_sinusoid(content, positions, augmentation, generator=generator)
            return add_sinusoid(content, positions)

    def _augment(
        self, positions: Tensor, height: int, width: int, generator: torch.Generator | None
    ) -> Tensor:
        """:class:`Augmentation` for TorchScript, which knows no dataclass."""
        draw = draw_global(
            positions.shape[0],
            2,
            self.max_global_shift,
            self.max_global_scale,
            positions.device,
            generator,
        )
        local = draw_local(positions, self._local_shifts(height, width), generator)
        return augment(positions, draw, local)

    @torch.jit.ignore
    def _augmentation(self, height: int, width: int) -> Augmentation:
        return Augmentation(
            self.max_global_shift,
            tuple(self._local_shifts(height, width)),
            self.max_global_scale,
            mean_normalize=False,
        )

    def _local_shifts(self, height: int, width: int) -> list[float]:
        if self.max_local_shift is None:
            return [1.0 / height, 1.0 / width]
        return [self.max_local_shift[0], self.max_local_shift[1]]

    def _resize_table(self, table: Tensor, height: int, width: int) -> Tensor:
        assert self.grid is not None
        rows, columns = self.grid
        if rows == height and columns == width:
            return table
        table = table.float().reshape(1, rows, columns, self.dim).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=[height, width], mode="bicubic", antialias=True)
        return table.permute(0, 2, 3, 1).reshape(1, height * width, self.dim)

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return (
            f"dim={self.dim}, variant={self.variant!r}, max_global_shift={self.max_global_shift}, "
            f"max_local_shift={self.max_local_shift}, max_global_scale={self.max_global_scale}, "
            f"extent={self.extent}"
        )


def check_variant(variant: str, allowed: tuple[str, ...] = VARIANTS) -> None:
    """Raise ValueError unless the variant is one of the allowed."""
    if variant not in allowed:
        raise ValueError(f"unknown variant {variant!r}: choose one of {', '.join(allowed)}")


def _check_index(index: Tensor, rows: int) -> None:
    if can_look_at(index) and index.numel() and (index.min() < 0 or index.max() >= rows):
        raise ValueError(
            f"abspos has positions 0 … {rows - 1}, got {index.min()} … {index.max()}: "
            "build it with a larger max_length, shorten the input, or use overflow='wrap'"
        )


def _check_content(content: Tensor, dim: int) -> tuple[int, int]:
    if content.ndim != 3 or content.shape[2] != dim:
        raise ValueError(f"content must be (B, N, {dim}), got shape {list(content.shape)}")
    return content.shape[0], content.shape[1]
