"""Content + positional embedding, for all variants of the table, in sequences and images.

A model of your own calls :class:`PositionalEmbedding` before its first layer. The hosts call its
two halves, ``augment`` and ``add``, because their attention reads the augmented positions too. The
module has no buffer, so ``.half()`` and ``.to_empty()`` leave its frequencies alone.

    >>> position = PositionalEmbedding(512, "cape", max_global_shift=5.0, max_local_shift=0.5)
    >>> x = position(content, token_positions(lengths, content.shape[1]))    # (B, N, 512)
    >>> x = PositionalEmbedding(384, "sinpos", axes=2)(patches, patch_grid(14, 14)[None])
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins import sinusoid, variants
from cape_plugins.augment import Draw, LocalShift
from cape_plugins.checks import check_count, check_positions, check_values
from cape_plugins.constants import constant
from cape_plugins.elementwise import add_where
from cape_plugins.positions import Generator, at_least_float32, with_axes


class PositionalEmbedding(nn.Module):
    """Adds positions to the tokens of a sequence or the patches of an image.

    What it adds depends on the variant ``pos``:

    - ``sinpos``: sinusoids of the positions as given.
    - ``cape``: sinusoids of the positions after centring; in training they are also shifted,
      jittered and scaled.
    - ``random``: sinusoids of sorted random positions in training, and of the mean of such draws
      in evaluation (:class:`cape_plugins.random_positions.RandomPositions`).
    - ``abspos``: a learnable vector for each integer. A position is rounded to the nearest one, so
      give it indices (tokens, frames), not seconds.
    - ``nopos``: nothing.
    - Variants that act in self-attention, such as ``rope``: nothing. :meth:`augment` still gives
      the positions that their attention needs.

    Args:
        dim: channels; an even number where sinusoids are added.
        pos: a name of :mod:`cape_plugins.variants`.
        axes: number of axes of a position: 1 in sequences, 2 in images.
        max_global_shift, max_local_shift, max_global_scale, mean_normalize: settings of ``cape``
            (:class:`cape_plugins.Augmentation`), in the unit of the positions. The defaults only
            centre, because the right shifts depend on that unit.
        base: base of the frequencies in sequences; 10 000, as in the paper (section 3.1).
        frequency_scale: multiplies all frequencies; 1 for tokens and patches, 30 for seconds
            (section 4.2).
        max_length: number of vectors in the table of ``abspos``; required there.
        overflow: what ``abspos`` does beyond its table: ``"wrap"`` takes the index modulo
            ``max_length`` (as the paper in speech), ``"error"`` raises (as fairseq).
        random_range: (low, high), the range that ``random`` draws from, in the unit of positions.
        spread: whether ``random`` spreads positions over that range in evaluation.

    Raises:
        ValueError: a value is out of range, or given to a variant that does not take it.
    """

    def __init__(
        self,
        dim: int,
        pos: str = "cape",
        *,
        axes: int = 1,
        max_global_shift: float = 0.0,
        max_local_shift: float | tuple[float, ...] = 0.0,
        max_global_scale: float = 1.0,
        mean_normalize: bool = True,
        base: float = 10_000.0,
        frequency_scale: float = 1.0,
        max_length: int | None = None,
        overflow: str = "wrap",
        random_range: tuple[float, float] = (0.0, 1.0),
        spread: bool = True,
    ) -> None:
        super().__init__()
        given: dict[str, Any] = dict(
            max_global_shift=max_global_shift,
            max_local_shift=max_local_shift,
            max_global_scale=max_global_scale,
            mean_normalize=mean_normalize,
            base=base,
            frequency_scale=frequency_scale,
            max_length=max_length,
            overflow=overflow,
            random_range=random_range,
            spread=spread,
        )
        variant = variants.get(pos, variants.names(axes))
        check_count("dim", dim)
        if variant.adds == "sinusoid":
            sinusoid.check_dim(dim)
        sinusoid.check_frequencies(base, frequency_scale)
        if overflow not in ("wrap", "error"):
            raise ValueError(f"overflow must be 'wrap' or 'error', got {overflow!r}")
        if max_length is not None:
            check_count("max_length", max_length)
        self.augmentation = variants.augmentation(pos, given)
        variants.refuse_options(pos, given, _DEFAULTS, axes=axes)
        self.dim, self.pos, self.axes, self.overflow = dim, pos, axes, overflow
        self.adds_nothing = variant.adds == "nothing"
        self.base, self.frequency_scale = float(base), float(frequency_scale)
        self.register_parameter("table", None)
        if variant.adds == "table":
            if max_length is None:
                raise ValueError(f"{pos} needs max_length, the number of vectors in its table")
            self.table = nn.Parameter(torch.empty(max_length, dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def forward(
        self,
        content: Tensor,
        positions: Tensor,
        draw: Draw | None = None,
        generator: Generator = None,
        *,
        max_local_shift: LocalShift | None = None,
    ) -> Tensor:
        """Add the embedding of the positions.

        Args:
            content: (B, N, dim), any float dtype.
            positions: (B, N), or (B, N, 2) with two axes; (1, N[, 2]) if all samples share
                them. NaN marks padding, and nothing is added there. Integers are converted to
                float64, so that timestamps stay exact. float16 and bfloat16 are converted to
                float32. They do not hold every integer above 2,048 and 256, so prefer float32.
            draw: Δ and λ of each sample, for sequences that share them. Only ``cape`` uses them,
                and only in training. Default: drawn here.
            generator: source of randomness in training.
            max_local_shift: ε in place of the constructor's, for positions whose spacing changes
                from forward to forward: a number, one per axis, or a tensor that broadcasts to
                (B, N, axes).

        Returns:
            (B, N, dim) in content's dtype; the sum is computed in float32 at least.

        Raises:
            ValueError: shapes do not fit; content is not of a float dtype; positions are complex,
                bool or infinite, or integers beyond ± 2^53; with ``overflow="error"`` positions are
                beyond the table; ε is below 0 or not finite (on CUDA:
                :func:`cape_plugins.checks.check_values`).
        """
        if content.ndim != 3 or content.shape[2] != self.dim or not content.is_floating_point():
            got = f"shape {list(content.shape)} of {content.dtype}"
            raise ValueError(f"content must be (B, N, {self.dim}) of a float dtype, got {got}")
        batch, length, _ = content.shape
        wanted = (length, 2) if self.axes == 2 else (length,)
        if positions.shape[1:] != wanted or positions.shape[0] not in (1, batch):
            raise ValueError(
                f"content of shape {list(content.shape)} needs positions {[batch, *wanted]} (or "
                f"{[1, *wanted]}), got {list(positions.shape)}"
            )
        if self.adds_nothing:
            check_positions(positions)
            return content
        moved = self.augment(positions, batch, draw, generator, max_local_shift=max_local_shift)
        return self.add(content, moved)

    def draw(
        self, batch_size: int, device: torch.device, generator: Generator = None
    ) -> Draw | None:
        """Δ and λ that several sequences may share; None where the variant draws none now."""
        if not self.training:
            return None
        return self.augmentation.draw(batch_size, self.axes, device, generator)

    def augment(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        generator: Generator = None,
        *,
        max_local_shift: LocalShift | None = None,
    ) -> Tensor:
        """The first half of :meth:`forward`, for hosts whose attention gets the same positions.

        The arguments are those of :meth:`forward`.

        Returns:
            The augmented positions, (1 or B, N[, 2]), in float32 at least.

        Raises:
            ValueError: positions, draw, generator or ε are wrong, as in :meth:`forward`.
        """
        check_positions(positions)
        wide = with_axes(positions)  # (1 or B, N, axes)
        if self.training:
            wide = self.augmentation.in_training(
                wide, batch_size, draw, max_local_shift=max_local_shift, generator=generator
            )
        else:
            wide = self.augmentation.in_evaluation(wide)
        return wide if self.axes > 1 else wide[..., 0]

    def add(self, content: Tensor, positions: Tensor) -> Tensor:
        """The second half of :meth:`forward`: content + embedding of the augmented positions."""
        if self.adds_nothing:
            return content
        if self.table is not None:
            # half-precision content is promoted to float32: one rounding, at the end
            return (content + self._look_up(positions, self.table)).to(content.dtype)
        known, present = sinusoid.known_positions(self._with_axes(positions))
        dtype = at_least_float32(content.dtype)
        added = sinusoid.sines(known, self._waves(positions), dtype)  # (1 or B, N, dim)
        return add_where(content, added, present)

    def embedding(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The embedding of augmented positions, without content: (1 or B, N[, 2]) → (…, N, dim).

        It is zero at padding. ``dtype`` is the content's; sinusoids are in it, or in float32 if it
        is narrower.

        Raises:
            ValueError: with ``overflow="error"``, a position is beyond the table of ``abspos``.
        """
        if self.table is not None:
            return self._look_up(positions, self.table)
        positions, waves = self._with_axes(positions), self._waves(positions)
        return sinusoid.embed(positions, waves, at_least_float32(dtype))

    def _with_axes(self, positions: Tensor) -> Tensor:
        return positions if self.axes > 1 else positions[..., None]  # (1 or B, N, axes)

    def _waves(self, positions: Tensor) -> Tensor:
        """``waves`` of :func:`cape_plugins.sinusoid.sines`, (axes + 1, dim), on their device."""
        dim, scale = self.dim, self.frequency_scale
        if self.axes > 1:
            return constant(sinusoid.waves_2d, dim, scale, like=positions)
        return constant(sinusoid.waves_1d, dim, self.base, scale, like=positions)

    def _look_up(self, positions: Tensor, table: Tensor) -> Tensor:
        """Rows of the table (rows, dim) at positions (B, N), rounded to the nearest integer."""
        padding, rows = positions.isnan(), table.shape[0]
        index = positions.masked_fill(padding, 0.0).round().long()  # (B, N)
        if self.overflow == "wrap":
            index = index.remainder(rows)
        rule = f"{self.pos} has positions 0 … {rows - 1} (build it with a larger max_length, "
        rule += "shorten the input, or use overflow='wrap')"
        check_values(index, lambda: (index >= 0) & (index < rows), rule)
        return F.embedding(index, table).masked_fill(padding[..., None], 0.0)  # (B, N, dim)

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        scale = f"frequency_scale={self.frequency_scale}"
        return f"dim={self.dim}, pos={self.pos!r}, axes={self.axes}, {scale}, {self.augmentation}"


_DEFAULTS: dict[str, Any] = dict(PositionalEmbedding.__init__.__kwdefaults__ or {})
del _DEFAULTS["axes"]
