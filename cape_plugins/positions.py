"""Everything between "content and positions" and attention: the one road of all hosts.

>>> positions = Positions("rope", dim=512, heads=8, layers=6)
>>> x, given = positions(x, token_positions(lengths), mask)     # once in a forward
>>> for attention in positions.attentions:                      # one for each layer
...     out, _ = attention(query, key, value, given)            # (B, heads, N, head_dim)

A decoder's are counted and its mask is causal. In a step its attention gets ``cache=`` besides:

>>> positions = Positions("rope", dim=512, heads=8, layers=6, causal=True)
>>> x, given = positions(x)                                     # (B, N, 512)
>>> new, given = positions(new, past=7)                         # (B, 1, 512), after 7 others
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.attention import Given, PositionalAttention, merge, with_heads, without
from cape_plugins.augment import AsGiven, Draw, LocalShift
from cape_plugins.causal import check_mask, earlier, place, reads_keys
from cape_plugins.checks import check_count, check_positions, is_traced
from cape_plugins.mark import PACKAGE, VariantMark
from cape_plugins.options import check_asked, declared
from cape_plugins.part import Part, Sizes
from cape_plugins.places import Generator, with_axes
from cape_plugins.sinusoid import Sinusoids
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
        causal: of a decoder: nothing depends on later tokens or on the length. Options that centre
            or spread positions are off, the mask is causal, and the content is multiplied by
            :attr:`content_scale`.
        remembers: what else changes results in evaluation, so that checkpoints keep it: name →
            number.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
        options: those that the variant takes: ``max_global_shift=5.0``. None is the default.

    Attributes:
        attentions: the self-attention of each layer, a ``nn.ModuleList``; without positions in it
            where the variant acts at the input alone. :meth:`hand_over` is for hosts, whose layers
            have an attention already.
        layers: the same, None where a layer has none; not registered.
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
        causal: bool = False,
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
        variants.check_taken(options, pos, axes, spell=spell)
        if causal:
            options |= _alone(self.variant.augments, options)
        self.causal = causal
        self.options: dict[str, Any] = {name: one.default for name, one in taken.items()}
        self.options |= {name: value for name, value in options.items() if value is not None}

        of_augmentation = self._of(self.variant.augments)
        self.augmentation = self.variant.augments(**of_augmentation, sizes=self.sizes)
        adds, attends = self.variant.adds, self.variant.attends
        self.added = None if adds is None else adds(self.sizes, **self._of(adds))
        # what to do so that a token's position in evaluation depends on no other; empty: none
        self.needs_others = self.augmentation.needs_whole_sequence(training=False)
        if self.added is not None and self.added.needs_content():
            self.needs_others = "it adds what depends on the content; use it in an encoder"
        if causal and self.needs_others:
            told = f"{pos} needs other tokens, which a decoder's step lacks: {self.needs_others}"
            raise ValueError(told)
        made: list[PositionalAttention | None] = [None] * layers
        if attends is not None:
            if layers == 0:
                raise ValueError(f"{pos} acts in self-attention: give the number of layers")
            own = self._of(attends)
            first = attends(self.sizes, **own)
            for layer in range(layers):
                if first.acts_in(layer):
                    new = layer > 0 and not self.variant.one_for_all
                    one = attends(replace(self.sizes, layer=layer), **own) if new else first
                    one.pos, one.prepares = pos, self.variant.one_for_all
                    made[layer] = one
        self.layers = tuple(made)  # a tuple registers nothing: who has the layers, has them too
        self.attentions = nn.ModuleList(without(self.sizes) if one is None else one for one in made)
        self._number = next((n for n, one in enumerate(made) if one is not None), None)
        if self.added is not None:
            self.added.pos = pos
        # a default of None is decided by the part that declares it
        for part in (self.augmentation, self.added, self.first):
            for name in declared(part and type(part), axes).keys() & self.options.keys():
                self.options[name] = getattr(part, name)
            if isinstance(part, Part):
                try_out(part)
        self.reads_keys = self.first is not None and reads_keys(self.first)
        training_only = [n for n, one in taken.items() if one.metadata["training_only"]]
        kept = {**self.options, **remembers}
        if (package := variants.package(pos, axes)) not in ("cape_plugins", "__main__"):
            kept[PACKAGE] = package
        self.mark = VariantMark(pos, kept, training_only, spell, advice)

    def _of(self, kind: type) -> dict[str, Any]:
        """The options that a class of the variant declares."""
        names = declared(kind, self.sizes.axes)
        return {name: self.options[name] for name in names if name in self.options}

    @property
    def content_scale(self) -> float:
        """What a decoder's content is multiplied by where sinusoids are added: √dim, else 1.

        Sinusoids are about 1, and embeddings of tokens are drawn smaller (Vaswani et al. 2017,
        section 3.4); a table begins as small as they do.
        """
        return self.sizes.dim**0.5 if isinstance(self.added, Sinusoids) else 1.0

    @property
    def has_positions(self) -> bool:
        """Whether positions reach the model at all; else nothing is computed."""
        return self.variant.has_positions

    def forward(
        self,
        content: Tensor | None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        draw: Draw | None = None,
        *,
        keys: Tensor | None = None,
        past: int = 0,
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
                Integers are converted to float64, so that timestamps stay exact. With ``causal``
                they may be left out: tokens are counted from 0 on, without those that a mask
                (B, 1, past + N) hides, which is padding.
            mask: which keys queries see, (1 or B, 1 or N, 1 or keys), or with an axis of heads
                before the queries: bool, True where a query sees a key, or of a float dtype, added
                to the scores. None: all. A query that sees no key gets 0 from attention. With
                ``causal`` later tokens are hidden besides, unless ``keys`` are given.
            draw: Δ and λ of each sample, for sequences that share them. Only variants with CAPE's
                augmentation use them, in training. Default: drawn here.
            max_local_shift: ε in place of the option's, for positions whose spacing changes from
                forward to forward: a number, one per axis, or a tensor that broadcasts to
                (B, N, axes).
            keys: positions of the keys, (1 or B, keys[, 2]), where they are others than the
                content's tokens: all tokens so far in a step with a cache of keys, or another
                sequence. In training they share Δ and λ, given by ``draw``, and each has its ε.
            past: how many tokens a cache of keys holds already. With ``causal`` it says where the
                new tokens and the keys are, unless ``positions`` and ``keys`` do.
            generator: source of randomness in training.
            dtype: of the layers, where there is no content. Default: float32.
            draws: False for evaluation's positions in training mode too: those of tokens that are
                generated, whose cached keys keep the positions that they got.

        Returns:
            (B, N, dim) in content's dtype, summed in float32 at least; without content the
            embedding alone, (1 or B, N, dim), or None where the variant adds nothing. And what the
            attention of every layer gets.

        Raises:
            ValueError: positions are left out without ``causal``; shapes do not fit; content is not
                of a float dtype; the mask is neither bool nor of a float dtype, is of zeros and
                ones, or hides later tokens on which positions depend; positions are complex, bool,
                infinite or of less than float32, integers beyond ± 2^53, or beyond a table; ε is
                below 0 or not finite (on CUDA: :func:`cape_plugins.checks.check_values`); or
                ``keys`` are given to a variant whose positions depend on the whole sequence, or
                that draws, in training without ``draw``.
        """
        if keys is None and (self.causal or positions is None):
            positions, keys, mask = self._place(content, positions, mask, past)
            self._check_shapes(content, positions, keys)
        else:
            assert positions is not None  # for mypy
            self._check_shapes(content, positions, keys)
            check_mask(mask, positions, positions if keys is None else keys, self.needs_others)
        if content is not None and self.causal and self.content_scale != 1.0:
            content = content * self.content_scale
        if not self.has_positions:
            return content, Given(mask=with_heads(mask))
        batch = positions.shape[0] if draw is None else draw.scale.shape[0]
        if content is not None:
            batch, dtype = content.shape[0], content.dtype
        if keys is positions:
            keys = None  # a sequence that attends to itself
        if keys is not None:
            self._check_keys(draw, draws)
        how: dict[str, Any] = dict(
            max_local_shift=max_local_shift, generator=generator, draws=draws
        )
        moved = of_keys = self.augment(positions, batch, draw, **how)
        dtype, mask = dtype or torch.float32, with_heads(mask)
        if self.added is not None:
            content = self.added(content, moved, dtype)
        first = self._first(positions.device)
        if first is None:
            return content, Given(mask=mask)
        unread = past > 0 and not self.reads_keys  # a cache has embedded them already
        if keys is not None and not unread:
            of_keys = self.augment(keys, batch, draw, **how)
        if first.prepares:
            return content, Given(moved, of_keys, mask)
        given = first.prepare(moved, of_keys, mask, dtype)
        if unread:
            given = given._replace(keys=None)
        if None in self.layers and given.mask is None:  # other layers need the mask alone
            given = given._replace(mask=mask)
        return content, given

    def _place(
        self, content: Tensor | None, positions: Tensor | None, mask: Tensor | None, past: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Positions of a decoder's tokens and of its keys, and its mask, in which it is causal."""
        if not self.causal:
            raise ValueError("give positions; only with causal=True tokens are counted")
        check_count("past", past, least=0)
        if positions is None:
            if content is None or self.sizes.axes > 1:
                raise ValueError("give positions: only tokens of content in a sequence are counted")
            positions, keys = place(content.shape[1], past, mask, content.device)
            keys = keys if past else positions
        elif past:
            raise ValueError(f"past={past} with positions of your own needs those of all by keys=")
        else:
            keys = positions
        count = positions.shape[1]
        check_mask(mask, positions, keys)
        hides = earlier(count, past + count, positions.device)
        dtype = torch.float32 if content is None else content.dtype
        return positions, keys, merge(with_heads(mask), with_heads(hides), dtype)

    def _check_keys(self, draw: Draw | None, draws: bool) -> None:
        """Raise ValueError if keys and queries would not be of one sequence, or of one draw."""
        training = self.training and draws
        if told := self.augmentation.needs_whole_sequence(training):
            raise ValueError(
                f"{self.pos} with keys=: a token's position depends on the whole sequence, "
                f"which a step or another sequence does not have: {told}"
            )
        if training and draw is None and self.variant.augments is not AsGiven:
            raise ValueError(
                f"{self.pos} draws positions in training, and keys of a cache keep those of their "
                "own step: call eval(), or give draws=False in each step, the first too; for "
                "another sequence give draw=, from Positions.draw"
            )

    @property
    def first(self) -> PositionalAttention | None:
        """The attention of the first layer that has the variant's, which prepares for all."""
        return None if self._number is None else self.layers[self._number]

    def _first(self, device: torch.device) -> PositionalAttention | None:
        """:attr:`first`; a replica of nn.DataParallel has its own."""
        first = self.first
        if first is None or not getattr(self, "_is_replica", False):
            return first
        if self.attentions:
            return self.attentions[self._number]  # type: ignore[return-value, index]
        if any(one.device != device for one in first.buffers()):
            raise ValueError(
                f"{first.said('prepare')} may read a buffer, which nn.DataParallel leaves on "
                "another device: train by DistributedDataParallel (torchrun), or on one GPU"
            )
        return first

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
        return [*self.layers]

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

    def extra_repr(self) -> str:
        """The variant and its options, for ``print(model)``."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.pos!r}, {self.sizes}{options}"


def _alone(augments: type[AsGiven], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of a decoder; ValueError if the user has said something else."""
    for name, value in augments.alone.items():
        if options.get(name) not in (None, value):
            raise ValueError(
                f"{name}={options[name]!r} makes a token's position depend on later ones, which a "
                f"decoder does not know: leave {name} out, or causal=True"
            )
    return augments.alone
