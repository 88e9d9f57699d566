"""Everything between "content and positions" and attention: the one road of all hosts.

>>> positions = Positions("rope", dim=512, heads=8, layers=6)
>>> x, given = positions(x, token_positions(lengths), mask)     # once in a forward
>>> for attention in positions.attentions:                      # one for each layer
...     out, _ = attention(query, key, value, given)            # (B, heads, N, head_dim)

A step of decoding has one new token, and keys of all tokens so far:

>>> new, given = positions(new, where_new, keys=where_all)      # (B, 1, 512)
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
from cape_plugins.mark import PACKAGE, VariantMark
from cape_plugins.options import as_declared, check_asked, declared
from cape_plugins.positions import Generator, with_axes
from cape_plugins.returned import check_embedding, check_given
from cape_plugins.sizes import Sizes
from cape_plugins.tryout import try_out

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
        attentions: the self-attention of each layer, a ``nn.ModuleList``; without positions in it
            where the variant acts at the input alone. :meth:`hand_over` is for hosts, whose layers
            have an attention already.
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
        for name, value in options.items():
            if value is not None:
                self.options[name] = as_declared(taken[name], value, spell)

        of_augmentation = self._of(self.variant.augments)
        self.augmentation = self.variant.augments(**of_augmentation, sizes=self.sizes)
        adds, attends = self.variant.adds, self.variant.attends
        self.added = None if adds is None else adds(self.sizes, **self._of(adds))
        made: list[PositionalAttention | None] = [None] * layers
        if attends is not None:
            if layers == 0:
                raise ValueError(f"{pos} acts in self-attention: give the number of layers")
            count = 1 if self.variant.first_layer_only else layers
            new = 1 if self.variant.one_for_all else count
            different = [attends(self.sizes, **self._of(attends)) for _ in range(new)]
            made[:count] = different * (count // new)
        self._made = tuple(made)  # a tuple registers nothing: who has the layers, has them too
        plain = [PositionalAttention(self.sizes) if one is None else one for one in made]
        self.attentions = nn.ModuleList(plain)
        # a default of None is decided by the part that declares it
        for part in (self.augmentation, self.added, *self._made[:1]):
            for name in declared(type(part), axes) if part is not None else ():
                self.options[name] = getattr(part, name)
        for part in (self.added, *self._made):
            if part is not None:
                part.pos = pos
        for part in (self.added, *self._made[:1]):
            if part is not None:
                try_out(part)
        training_only = [name for name, one in taken.items() if one.training_only]
        kept = {**self.options, **remembers}
        if (root := variants.root(pos, axes)) != "cape_plugins":
            kept[PACKAGE] = root
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
        keys: Tensor | None = None,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
        dtype: torch.dtype | None = None,
        draws: bool = True,
    ) -> tuple[Tensor | None, Given]:
        """Augment positions, add their embedding to the content, prepare them for attention.

        Args:
            content: (B, N, dim), any float dtype. None for a host that adds what it is given.
            positions: (B, N), or (B, N, 2) with two axes; (1, N[, 2]) if all samples share them.
                NaN marks padding and tokens without a position, and nothing is added there.
                Integers are converted to float64, so that timestamps stay exact. float16 and
                bfloat16 are converted to float32. They do not hold every integer above 2,048 and
                256, so prefer float32.
            mask: which keys queries see, (1 or B, 1 or N, 1 or keys), or with an axis of heads
                before the queries: bool, True where a query sees a key, or of a float dtype, added
                to the scores. None: all. A query that sees no key gets 0 from attention.
            draw: Δ and λ of each sample, for sequences that share them. Only variants with CAPE's
                augmentation use them, in training. Default: drawn here.
            max_local_shift: ε in place of the option's, for positions whose spacing changes from
                forward to forward: a number, one per axis, or a tensor that broadcasts to
                (B, N, axes).
            keys: positions of the keys, (1 or B, keys[, 2]), where they are others than the
                content's tokens: all tokens so far in a step with a cache of keys, or another
                sequence. In training they share Δ and λ with ``positions``, and each has its ε.
            generator: source of randomness in training.
            dtype: of the layers, where there is no content. Default: float32.
            draws: False for evaluation's positions in training mode too: those of tokens that are
                generated, whose cached keys keep the positions that they got.

        Returns:
            (B, N, dim) in content's dtype, summed in float32 at least; without content the
            embedding alone, (1 or B, N, dim), or None where the variant adds nothing. And what the
            attention of every layer gets.

        Raises:
            ValueError: shapes do not fit; content is not of a float dtype, or the mask of neither
                bool nor a float dtype; positions are complex, bool or infinite, or integers beyond
                ± 2^53, or beyond a table; ε is below 0 or not finite (on CUDA:
                :func:`cape_plugins.checks.check_values`); or ``keys`` are given to a variant whose
                positions depend on the whole sequence.
        """
        self._check_shapes(content, positions, keys)
        self._check_mask(mask, positions, positions if keys is None else keys)
        if not self.has_positions:
            return content, Given(mask=with_heads(mask))
        training = self.training and draws
        batch = positions.shape[0] if draw is None else draw.scale.shape[0]
        if content is not None:
            batch, dtype = content.shape[0], content.dtype
        if keys is not None:
            if told := self.augmentation.needs_whole_sequence(training):
                raise ValueError(
                    f"{self.pos} with keys=: a token's position depends on the whole sequence, "
                    f"which a step or another sequence does not have: {told}"
                )
            if draw is None and draws:
                draw = self.draw(batch, positions.device, generator)
        drawn: dict[str, Any] = dict(
            max_local_shift=max_local_shift, generator=generator, draws=draws
        )
        moved = self.augment(positions, batch, draw, **drawn)
        dtype = torch.float32 if dtype is None else dtype
        added = content
        if self.added is not None and content is not None:
            added = self.added.add(content, moved)
        elif self.added is not None:
            added = self.added.embedding(moved, dtype)
            check_embedding(self.added, added, moved, self.sizes.dim)
            added = added.to(dtype)
        first = self._made[0] if self._made else None
        if first is None:
            return added, Given(mask=with_heads(mask))
        of_keys = moved
        if keys is not None:
            of_keys = self.augment(keys, batch, draw, **drawn)
        given = first.prepare(moved, of_keys, with_heads(mask), dtype)
        check_given(first, given, Given)
        return added, given

    def train(self, mode: bool = True) -> "Positions":
        """As nn.Module's.

        Raises:
            ValueError: training needs an option that has no default, because its right value
                depends on the unit of positions.
        """
        if mode:
            check_asked(self.augmentation, training=True)
        return super().train(mode)

    def hand_over(self) -> list[PositionalAttention | None]:
        """The variant's attention of each layer, which is no longer in :attr:`attentions`.

        It becomes a module of a host's layer, which names its parameters. None leaves the host's
        own attention.
        """
        self.attentions = nn.ModuleList()
        return [*self._made]

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
        draws: bool = True,
    ) -> Tensor:
        """The augmented positions, (1 or B, N, axes), float32 at least; see :meth:`forward`."""
        check_positions(positions)
        wide = with_axes(positions)
        if not (self.training and draws):
            return self.augmentation.in_evaluation(wide)
        return self.augmentation.in_training(
            wide, batch_size, draw, max_local_shift=max_local_shift, generator=generator
        )

    def _check_shapes(self, content: Tensor | None, positions: Tensor, keys: Tensor | None) -> None:
        if is_traced():  # there sizes may be symbols
            return
        dim, axes = self.sizes.dim, self.sizes.axes
        pair = [] if axes == 1 else [axes]
        for name, one in (("positions", positions if content is None else None), ("keys", keys)):
            if one is not None and (one.ndim < 2 or [*one.shape[2:]] != pair):
                form = f"(B, N, {axes})" if pair else "(B, N)"
                raise ValueError(f"{name} must be {form}, got shape {list(one.shape)}")
        if content is None:
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

    def _check_mask(self, mask: Tensor | None, queries: Tensor, keys: Tensor) -> None:
        if mask is None or is_traced():
            return
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ValueError(
                f"mask must be bool, True where a query sees a key, or of a float dtype, added to "
                f"the scores; got {mask.dtype}: call its .bool()"
            )
        sizes = queries.shape[1], keys.shape[1]
        fits = mask.ndim in (3, 4) and all(
            is_ in (1, wanted) for is_, wanted in zip(mask.shape[-2:], sizes, strict=True)
        )
        if not fits:
            raise ValueError(
                f"mask must be (1 or B, 1 or {sizes[0]}, 1 or {sizes[1]}), of queries and of keys, "
                f"or (1 or B, 1 or heads, …); got {list(mask.shape)}"
            )

    def extra_repr(self) -> str:
        """The variant and its options, for ``print(model)``."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.pos!r}, {self.sizes}{options}"
