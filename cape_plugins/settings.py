"""The options about positions that all hosts have; each host adds its units and defaults.

A host subclasses :class:`PositionSettings` or :class:`SequenceSettings`, gives its own defaults,
and makes its flags, keyword arguments or YAML keys of the fields, so that a new field here reaches
all hosts.

    >>> settings = SequenceSettings(pos="cape", max_global_shift=5.0)
    >>> position = settings.embedding(512)
    >>> layers = settings.attention_layers(6, AttentionSettings(head_dim=64, heads=8))
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.augment import Augmentation
from cape_plugins.checks import check_positive, is_number
from cape_plugins.embedding import PositionalEmbedding
from cape_plugins.logn import check_logn


def option(default: Any, help: str) -> Any:
    """A field with its default and its meaning, for command lines and documentation."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class PositionSettings:
    """What a user asks of positions, checked at once.

    Raises:
        ValueError: unknown variant, or a value out of range, whatever the variant.
    """

    axes: ClassVar[int]  # of a position: 1 in sequences, 2 in images
    mean_normalize: ClassVar[bool] = True  # whether CAPE centres the host's positions

    pos: str = option("cape", "the variant of positions")
    max_global_shift: float = option(0.0, "cape: Δ of a sample is uniform in ± this")
    max_local_shift: Any = option(None, "cape: ε of a token is uniform in ± this")
    max_global_scale: float = option(1.0, "cape: λ of a sample is log-uniform in [1/this, this]")
    frequency_scale: float = option(1.0, "multiplies all frequencies of sinusoids and rotations")
    attention_logn: int | None = option(
        None,
        "with every variant: multiply the logits of self-attention by log N / log of this, N the "
        "tokens that a query sees; this is N in training; 0: off",
    )

    def __post_init__(self) -> None:
        variants.get(self.pos, variants.names(self.axes))
        local = 0.0 if self.max_local_shift is None else self.max_local_shift
        Augmentation(self.max_global_shift, local, self.max_global_scale)
        check_positive("frequency_scale", self.frequency_scale)
        check_logn(self.attention_logn)

    @property
    def variant(self) -> variants.Variant:
        """The row of the table."""
        return variants.get(self.pos)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Option → default."""
        return {field.name: field.default for field in dataclasses.fields(cls)}

    def takes(self, name: str) -> bool:
        """Whether the variant takes an option in this host."""
        return name in self.variant.taken(self.axes)

    def refuse_options(self, spell: Callable[[str], str] = str) -> None:
        """:func:`cape_plugins.variants.refuse_options`, whose ValueError names what was given."""
        variants.refuse_options(self.pos, vars(self), self.defaults(), spell, axes=self.axes)

    def embedding(self, dim: int, **options: Any) -> PositionalEmbedding:
        """What is added at the input, ``dim`` channels wide.

        ``options`` of :class:`cape_plugins.PositionalEmbedding` (TypeError: it has none of that
        name) replace the settings'; those that the variant does not take have no effect.
        """
        known = PositionalEmbedding.__init__.__kwdefaults__ or {}
        if typos := options.keys() - known.keys():
            raise TypeError(f"no options of PositionalEmbedding: {', '.join(sorted(typos))}")
        chosen = {**vars(self), "mean_normalize": self.mean_normalize, **options}
        taken = self.variant.taken(self.axes) & chosen.keys() & known.keys()
        given = {name: chosen[name] for name in taken if chosen[name] is not None}
        return PositionalEmbedding(dim, self.pos, axes=self.axes, **given)

    def attention_layers(
        self, layers: int, settings: AttentionSettings
    ) -> list[PositionalAttention | None]:
        """What sits in the self-attention of each layer; None is the host's own."""
        return variants.attention_layers(self.pos, layers, settings, self.attention_logn or 0)


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(PositionSettings):
    """The options of sequences, whose unit (tokens, seconds) the host decides."""

    axes: ClassVar[int] = 1

    random_range: float = option(1.0, "random: in training, positions are drawn from 0 to this")
    relpos_context: Any = option(1, "relpos: distances beyond ± this share a vector")

    def __post_init__(self) -> None:
        super().__post_init__()
        # one number, where images have one per axis
        if not (self.max_local_shift is None or is_number(self.max_local_shift)):
            raise ValueError(f"max_local_shift must be one number, got {self.max_local_shift!r}")
        check_positive("random_range", self.random_range)

    def embedding(self, dim: int, **options: Any) -> PositionalEmbedding:
        """:meth:`PositionSettings.embedding`; random positions begin at 0."""
        return super().embedding(dim, **{"random_range": (0.0, self.random_range), **options})


def split_options(
    settings: type[PositionSettings], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options about positions, and the others, for hosts that get both in one mapping."""
    ours = {name: options[name] for name in settings.defaults() if name in options}
    return ours, {name: value for name, value in options.items() if name not in ours}
