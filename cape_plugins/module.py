"""Everything between "content and positions" and attention: the one road of all hosts.

>>> positions = Positions("rope", dim=512, heads=8, layers=6)
>>> x, given = positions(x, token_positions(lengths), mask)     # once in a forward
>>> for attention in positions.attentions:                      # one for each layer
...     out, _ = attention(query, key, value, given)            # (B, heads, N, head_dim)
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.attention import Given, PositionalAttention, with_heads
from cape_plugins.augment import Draw, LocalShift
from cape_plugins.checks import check_count, check_positions, is_traced
from cape_plugins.mark import VariantMark
from cape_plugins.options import declared
from cape_plugins.positions import Generator, with_axes
from cape_plugins.sizes import Sizes

_NONE: Mapping[str, Any] = MappingProxyType({})


class Positions(nn.Module):
    """Positions of a variant: augmented, added to the content, and prepared for attention.

    Args:
        pos: the variant, a name of :mod:`cape_plugins.variants`.
        dim: channels of the content; even where sinusoids are added.
        heads, head_dim: of self-attention, for variants that act there. ``head_dim`` is
            ``dim / heads`` unless given.
        layers: number of layers, for :attr:`attentions`.
        axes: of a position: 1 in sequences, 2 in images.
        spacing: between neighbouring tokens, in the unit of positions (:class:`Sizes`).
        remembers: what else changes results in evaluation, so that checkpoints keep it: name →
            number.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
        options: those that the variant takes: ``max_global_shift=5.0``. None is the default.

    Attributes:
        attentions: what each layer's self-attention is; None leaves the host's own. They belong to
            the layers: a model puts them there, and their parameters are not this module's.
        mark: names the variant in checkpoints.

    Raises:
        ValueError: unknown variant; an option that it does not take, or out of range; or sizes that
            it cannot serve.
    """

    def __init__(
        self,
        pos: str = "cape",
        *,
        dim: int,
        heads: int = 1,
        head_dim: int = 0,
        layers: int = 0,
        axes: int = 1,
        spacing: float = 1.0,
        remembers: Mapping[str, float | None] = _NONE,
        spell: Callable[[str], str] = str,
        advice: str = "give another checkpoint",
        **options: Any,
    ) -> None:
        super().__init__()
        self.pos = pos
        self.variant = variants.get(pos, axes)
        self.sizes = Sizes(dim=dim, heads=heads, head_dim=head_dim, axes=axes, spacing=spacing)
        check_count("layers", layers, least=0)
        taken = self.variant.options(axes)
        if unknown := options.keys() - taken.keys():
            allowed = ", ".join(taken) or "no options"
            raise ValueError(f"{pos} takes {allowed}, got {', '.join(sorted(unknown))}")
        self.options = {name: one.default for name, one in taken.items()}
        self.options |= {name: value for name, value in options.items() if value is not None}

        self.augmentation = self.variant.augments(**self._of(self.variant.augments))
        adds, attends = self.variant.adds, self.variant.attends
        self.added = None if adds is None else adds(self.sizes, **self._of(adds))
        self.attentions: list[PositionalAttention | None] = [None] * layers
        if attends is not None:
            if layers == 0:
                raise ValueError(f"{pos} acts in self-attention: give the number of layers")
            count = 1 if self.variant.first_layer_only else layers
            made = [attends(self.sizes, **self._of(attends)) for _ in range(count)]
            self.attentions[:count] = made
        # a default of None is decided by the part that declares it
        for part in (self.augmentation, self.added, self.attentions[0] if layers else None):
            for name in declared(type(part), axes) if part is not None else ():
                self.options[name] = getattr(part, name)
        training_only = [name for name, one in taken.items() if one.training_only]
        kept = {**self.options, **remembers}
        self.mark = VariantMark(pos, kept, training_only, spell, advice)

    def _of(self, kind: type) -> dict[str, Any]:
        """The options that a class of the variant declares."""
        return {name: self.options[name] for name in declared(kind, self.sizes.axes)}

    @property
    def has_positions(self) -> bool:
        """Whether positions reach the model at all; else nothing is computed."""
        return self.variant.has_positions

    def forward(
        self,
        content: Tensor | None,
        positions: Tensor,
        mask: Tensor | None = None,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor | None, Given]:
        """Augment positions, add their embedding to the content, prepare them for attention.

        Args:
            content: (B, N, dim), any float dtype. None for a host that adds what it is given.
            positions: (B, N), or (B, N, 2) with two axes; (1, N[, 2]) if all samples share them.
                NaN marks padding and tokens without a position, and nothing is added there.
                Integers are converted to float64, so that timestamps stay exact. float16 and
                bfloat16 are converted to float32. They do not hold every integer above 2,048 and
                256, so prefer float32.
            mask: which keys queries see, broadcastable to (B, N, N) or (B, heads, N, N): bool, True
                where a query sees a key, or added to the scores. None: all.
            draw: Δ and λ of each sample, for sequences that share them. Only variants with CAPE's
                augmentation use them, in training. Default: drawn here.
            max_local_shift: ε in place of the option's, for positions whose spacing changes from
                forward to forward: a number, one per axis, or a tensor that broadcasts to
                (B, N, axes).
            generator: source of randomness in training.
            dtype: of the layers, where there is no content. Default: float32.

        Returns:
            (B, N, dim) in content's dtype, summed in float32 at least; without content the
            embedding alone, (1 or B, N, dim), or None where the variant adds nothing. And what the
            attention of every layer gets.

        Raises:
            ValueError: shapes do not fit; content is not of a float dtype; positions are complex,
                bool or infinite, or integers beyond ± 2^53, or beyond a table; ε is below 0 or not
                finite (on CUDA: :func:`cape_plugins.checks.check_values`).
        """
        self._check_shapes(content, positions)
        if not self.has_positions:
            return content, Given(mask=with_heads(mask))
        batch = positions.shape[0] if draw is None else draw.scale.shape[0]
        if content is not None:
            batch, dtype = content.shape[0], content.dtype
        moved = self.augment(
            positions, batch, draw, max_local_shift=max_local_shift, generator=generator
        )
        dtype = torch.float32 if dtype is None else dtype
        added = content
        if self.added is not None and content is not None:
            added = self.added.add(content, moved)
        elif self.added is not None:
            added = self.added.embedding(moved, dtype).to(dtype)
        first = self.attentions[0] if self.attentions else None
        if first is None:
            return added, Given(mask=with_heads(mask))
        return added, first.prepare(moved, mask, dtype)

    def draw(
        self, batch_size: int, device: torch.device, generator: Generator = None
    ) -> Draw | None:
        """Δ and λ that several sequences may share; None where the variant draws none now."""
        if not self.training:
            return None
        return self.augmentation.draw(batch_size, self.sizes.axes, device, generator)

    def augment(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
    ) -> Tensor:
        """The augmented positions, (1 or B, N, axes), float32 at least; see :meth:`forward`."""
        check_positions(positions)
        wide = with_axes(positions)
        if not self.training:
            return self.augmentation.in_evaluation(wide)
        return self.augmentation.in_training(
            wide, batch_size, draw, max_local_shift=max_local_shift, generator=generator
        )

    def _check_shapes(self, content: Tensor | None, positions: Tensor) -> None:
        if is_traced():  # there sizes may be symbols
            return
        dim, pair = self.sizes.dim, [2] if self.sizes.axes == 2 else []
        if content is None:
            if positions.ndim < 2 or [*positions.shape[2:]] != pair:
                form = "(B, N, 2)" if pair else "(B, N)"
                raise ValueError(f"positions must be {form}, got shape {list(positions.shape)}")
            return
        if content.ndim != 3 or content.shape[2] != dim or not content.is_floating_point():
            got = f"shape {list(content.shape)} of {content.dtype}"
            raise ValueError(f"content must be (B, N, {dim}) of a float dtype, got {got}")
        batch, length, _ = content.shape
        wanted = [length, *pair]
        if [*positions.shape[1:]] != wanted or positions.shape[0] not in (1, batch):
            raise ValueError(
                f"content of shape {list(content.shape)} needs positions {[batch, *wanted]} (or "
                f"{[1, *wanted]}), got {list(positions.shape)}"
            )

    def extra_repr(self) -> str:
        """The variant and its options, for ``print(model)``."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.pos!r}, {self.sizes}{options}"
