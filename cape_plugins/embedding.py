"""Content + positional embedding: the modules that hosts put before their first layer.

One forward serves all variants of the table. Neither keeps a buffer: frequencies are recomputed,
so ``.half()`` and ``.to_empty()`` leave them alone. The only state is the table of ``abspos``.
TorchScript compiles both.
"""

import torch
from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.augment import AsGiven, Augmentation, Draw, check_draw, check_generator, per_axis
from cape_plugins.fused import add_embedding, add_unchecked
from cape_plugins.positions import (
    can_look_at,
    check_positions,
    check_positive,
    grid_positions,
    kept_grid,
)
from cape_plugins.sinusoid import check_dim, check_frequencies
from cape_plugins.table import look_up, resize_table


class PositionalEmbedding(nn.Module):
    """What both modules below share.

    Args:
        dim: channels, even.
        pos: the variant, a name of the table.
        axes: 1 in sequences, 2 in images.
        augmentation: CAPE's settings.
        rows: shape of the learnable table, where the variant has one.
        base: of the frequencies in 1-D; not used in 2-D.
        frequency_scale: multiplies all frequencies.
        span, spread: see :class:`cape_plugins.random_positions.Random`.

    Attributes:
        draws: whether training draws positions at random.

    Raises:
        ValueError: any value is out of range, whatever the variant.
    """

    def __init__(
        self,
        dim: int,
        pos: str,
        axes: int,
        augmentation: Augmentation,
        rows: tuple[int, ...],
        base: float,
        frequency_scale: float,
        span: tuple[float, float],
        spread: bool,
    ) -> None:
        super().__init__()
        variant = variants.get(pos, variants.names(axes))
        check_dim(dim)
        check_frequencies(base, frequency_scale)
        self.dim = dim
        self.pos = pos
        self.axes = axes
        self.adds_nothing = variant.adds == "nothing"
        self.base = float(base)
        self.frequency_scale = float(frequency_scale)
        self.augmentation = augmentation
        self.draws = variant.augment is not AsGiven
        self.augment = variant.augment(augmentation, span, spread)
        self.register_parameter("table", None)
        if variant.adds == "table":
            self.table = nn.Parameter(torch.empty(*rows, dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def draw(self, batch_size: int, device: torch.device) -> Draw | None:
        """Δ and λ that several sequences may share; None where the variant draws none now."""
        return self.augment.draw(batch_size, self.axes, device)

    def _augment(
        self,
        positions: Tensor,
        batch: int,
        max_local_shift: Tensor | None,
        draw: Draw | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """What the variant makes of positions (1 or B, N, axes), in float32 at least."""
        if not torch.jit.is_scripting():
            check_generator(generator, positions.device)
            if draw is not None:
                check_draw(draw, batch, self.axes)
        positions = positions.to(torch.promote_types(positions.dtype, torch.float32))
        return self.augment(positions, batch, max_local_shift, draw, generator)

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return (
            f"dim={self.dim}, pos={self.pos!r}, frequency_scale={self.frequency_scale}, "
            f"{self.augmentation}"
        )


class PositionalEmbedding1d(PositionalEmbedding):
    """Adds positions to a sequence.

    - ``nopos`` adds nothing, and so do the variants that sit in self-attention.
    - ``abspos`` adds learnable vectors, looked up by the position rounded to the nearest integer:
      give it indices (tokens, frames), not seconds.
    - ``sinpos`` adds sinusoids of the positions as given.
    - ``cape`` centres the positions, in training augments them, then adds their sinusoids.
    - ``random`` adds sinusoids of sorted random positions in training, and in evaluation of the
      mean of such draws, see :class:`cape_plugins.random_positions.Random`.

    Args:
        dim: channels, even.
        pos: one of the above.
        max_global_shift, max_local_shift, max_global_scale, mean_normalize: CAPE's settings, see
            :class:`cape_plugins.Augmentation`; the defaults only centre, because the right
            shifts depend on the unit of the positions.
        base, frequency_scale: frequencies, see :func:`cape_plugins.sinusoid_1d`.
        max_length: vectors in the table of ``abspos``, which needs it.
        overflow: what ``abspos`` does beyond its table: ``"wrap"`` takes the index modulo
            ``max_length`` (as the paper in speech), ``"error"`` raises (as fairseq).
        random_range: the positions of ``random`` are 0 … this.

    Raises:
        ValueError: any value is out of range, whatever the variant.
    """

    def __init__(
        self,
        dim: int,
        pos: str = "cape",
        *,
        max_global_shift: float = 0.0,
        max_local_shift: float = 0.0,
        max_global_scale: float = 1.0,
        mean_normalize: bool = True,
        base: float = 10_000.0,
        frequency_scale: float = 1.0,
        max_length: int | None = None,
        overflow: str = "wrap",
        random_range: float = 1.0,
    ) -> None:
        check_positive("random_range", random_range)
        if overflow not in ("wrap", "error"):
            raise ValueError(f"overflow must be 'wrap' or 'error', got {overflow!r}")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be ≥ 1, got {max_length}")
        if max_length is None and variants.get(pos, variants.names(1)).adds == "table":
            raise ValueError(f"{pos} needs max_length, the number of vectors in its table")
        super().__init__(
            dim,
            pos,
            1,
            Augmentation(max_global_shift, max_local_shift, max_global_scale, mean_normalize),
            (max_length or 1,),
            base,
            frequency_scale,
            (0.0, random_range),
            spread=True,
        )
        self.max_length = max_length
        self.overflow = overflow
        self.max_local_shift = float(max_local_shift)

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
                positions beyond the table (on CUDA see
                :func:`cape_plugins.positions.check_values`).
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
        if self.adds_nothing:
            return content
        return self.add(content, self.augmented(positions, batch, draw, generator))

    def augmented(
        self,
        positions: Tensor,
        batch: int,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The first half of :meth:`forward`, for hosts whose attention reads the same positions.

        Args:
            positions, draw, generator: as there.
            batch: B.

        Returns:
            (B or 1, N), what the variant makes of the positions, in float32 at least.
        """
        if not torch.jit.is_scripting():
            check_positions(positions)
        local = per_axis([self.max_local_shift], positions.device) if self.training else None
        return self._augment(positions[..., None], batch, local, draw, generator)[..., 0]

    def add(self, content: Tensor, positions: Tensor) -> Tensor:
        """The second half of :meth:`forward`: content + embedding of the augmented positions."""
        if self.adds_nothing:
            return content
        if self.table is not None:
            return add_embedding(
                content, look_up(positions, self.table, wrap=self.overflow == "wrap")
            )
        return add_unchecked(content, positions[..., None], self.base, self.frequency_scale)


class PositionalEmbedding2d(PositionalEmbedding):
    """Adds positions to the patches of an image of any size.

    The variants are those of :class:`PositionalEmbedding1d` that have two axes; positions are
    those of :func:`cape_plugins.patch_grid`. Centring is left out because a grid is centred.

    Args:
        dim: channels, even.
        pos: ``nopos``, ``abspos``, ``sinpos`` or ``cape``.
        max_global_shift: Δ of each axis is uniform in ± this; 0.5 (section 4.1).
        max_local_shift: ε is uniform in ± this, one number or (height, width). Default: extent / N
            per axis, N patches along it (1 / N in section 4.1), so that neighbours keep their
            order.
        max_global_scale: λ is log-uniform in [1 / this, this]; 1.4 (section 4.1).
        extent: the paper's γ (Table 6): the grid runs from -extent to extent. The paper changes
            it at evaluation only.
        frequency_scale: multiplies all frequencies, see :func:`cape_plugins.sinusoid_2d`; 1 in
            the paper.
        grid: (height, width) in patches of the table of ``abspos``, which needs it; other sizes
            interpolate it (bicubic, antialiased, as timm does).

    Raises:
        ValueError: any value is out of range, whatever the variant.
    """

    def __init__(
        self,
        dim: int,
        pos: str = "cape",
        *,
        max_global_shift: float = 0.5,
        max_local_shift: float | tuple[float, float] | None = None,
        max_global_scale: float = 1.4,
        extent: float = 1.0,
        frequency_scale: float = 1.0,
        grid: tuple[int, int] | None = None,
    ) -> None:
        check_positive("extent", extent)
        if grid is not None and (len(grid) != 2 or min(grid) < 1):
            raise ValueError(f"grid must be (height, width), both ≥ 1, got {grid}")
        if grid is None and variants.get(pos, variants.names(2)).adds == "table":
            raise ValueError(f"{pos} needs grid, the (height, width) of its table in patches")
        if isinstance(max_local_shift, tuple | list) and len(max_local_shift) != 2:
            raise ValueError(
                f"max_local_shift must be a number or (height, width), got {max_local_shift}"
            )
        rows, columns = grid or (1, 1)
        # the default local shift depends on the grid of each forward
        settings = Augmentation(
            max_global_shift,
            0.0 if max_local_shift is None else max_local_shift,
            max_global_scale,
            mean_normalize=False,
        )
        super().__init__(
            dim,
            pos,
            2,
            settings,
            (1, rows * columns),
            10_000.0,
            frequency_scale,
            (-extent, extent),
            spread=False,  # a grid is already
        )
        self.max_global_shift = float(max_global_shift)
        self.max_local_shift: tuple[float, float] | None = None
        if isinstance(max_local_shift, (tuple, list)):
            self.max_local_shift = (float(max_local_shift[0]), float(max_local_shift[1]))
        elif max_local_shift is not None:
            self.max_local_shift = (float(max_local_shift), float(max_local_shift))
        self.max_global_scale = float(max_global_scale)
        self.extent = float(extent)
        self.grid = grid and (int(grid[0]), int(grid[1]))

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
        _, patches = _check_content(content, self.dim)
        if patches != height * width:
            raise ValueError(
                f"a grid of {height} × {width} has {height * width} patches, "
                f"content of shape {list(content.shape)} has {patches}"
            )
        if self.adds_nothing:
            return content
        if self.table is not None:
            rows, columns = self.grid or (height, width)
            table = resize_table(self.table, (rows, columns), (height, width))
            return add_embedding(content, table)
        return self.add(content, self.augmented(content, grid, generator))

    def augmented(
        self,
        content: Tensor,
        grid: tuple[int, int],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The first half of :meth:`forward`, for hosts whose attention reads the same positions.

        Args:
            content, grid, generator: as there; of the content only the batch size is read.

        Returns:
            (B or 1, H · W, 2) float32, what the variant makes of the patches' positions.
        """
        height, width = grid
        if torch.jit.is_scripting():
            positions = grid_positions(height, width, self.extent, content.device)
        elif can_look_at(content):
            positions = kept_grid(height, width, self.extent, content.device)
        else:
            positions = grid_positions(height, width, self.extent, content.device)
        local = self._local_shift(height, width, content.device)
        return self._augment(positions[None], content.shape[0], local, None, generator)

    def add(self, content: Tensor, positions: Tensor) -> Tensor:
        """The second half of :meth:`forward`: content + embedding of the augmented positions."""
        if self.adds_nothing:
            return content
        return add_unchecked(content, positions, self.base, self.frequency_scale)

    def _local_shift(self, height: int, width: int, device: torch.device) -> Tensor | None:
        """The largest ε along both axes, (2,); None in evaluation."""
        if not self.training:
            return None
        given = self.max_local_shift
        if given is None:
            return per_axis([self.extent / height, self.extent / width], device)
        return per_axis([given[0], given[1]], device)

    @torch.jit.unused
    def forward_at(
        self,
        content: Tensor,
        positions: Tensor,
        grids: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Add the embedding of positions, where each image has its own grid.

        Args:
            content: (B, N, dim) patches, any float dtype.
            positions: (B, N, 2), or (1, N, 2) to share them, each axis from -extent to extent;
                NaN marks padding.
            grids: (B, 1, 2) or (1, 1, 2), each image's numbers of patches (height, width).
            generator: source of randomness in training.

        Returns:
            (B, N, dim) in content's dtype.

        Raises:
            ValueError: shapes that do not fit, a variant with a table, or infinite positions (on
                CUDA see :func:`cape_plugins.positions.check_values`).
        """
        return self.add(content, self.augmented_at(content, positions, grids, generator))

    @torch.jit.unused
    def augmented_at(
        self,
        content: Tensor,
        positions: Tensor,
        grids: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The first half of :meth:`forward_at`, as :meth:`augmented`."""
        batch, patches = _check_content(content, self.dim)
        if positions.shape not in ((batch, patches, 2), (1, patches, 2)):
            raise ValueError(
                f"content of shape {list(content.shape)} needs positions [{batch}, {patches}, 2], "
                f"got {list(positions.shape)}"
            )
        if self.table is not None:
            raise ValueError(f"{self.pos} has a table of one grid and no positions of patches")
        check_positions(positions)
        local: Tensor | None = None  # in evaluation
        if self.training and self.max_local_shift is None:
            local = self.extent / grids
        elif self.training:
            local = per_axis(list(self.max_local_shift), content.device)
        return self._augment(positions, batch, local, None, generator)

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return (
            f"dim={self.dim}, pos={self.pos!r}, max_global_shift={self.max_global_shift}, "
            f"max_local_shift={self.max_local_shift}, max_global_scale={self.max_global_scale}, "
            f"extent={self.extent}, frequency_scale={self.frequency_scale}"
        )


def _check_content(content: Tensor, dim: int) -> tuple[int, int]:
    if content.ndim != 3 or content.shape[2] != dim:
        raise ValueError(f"content must be (B, N, {dim}), got shape {list(content.shape)}")
    return content.shape[0], content.shape[1]
