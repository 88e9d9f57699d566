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
    """A user's options about positions, checked when they are made.

    Raises:
        ValueError: the variant is unknown, or a value is out of range for every variant.
    """

    axes: ClassVar[int]  # number of axes of a position: 1 in sequences, 2 in images
    mean_normalize: ClassVar[bool] = True  # whether CAPE centres the host's positions

    pos: str = option("cape", "the variant of positions")
    max_global_shift: float = option(0.0, "cape: Δ of a sample is uniform in ± this")
    max_local_shift: Any = option(None, "cape: ε of a token is uniform in ± this")
    max_global_scale: float = option(1.0, "cape: λ of a sample is log-uniform in [1/this, this]")
    frequency_scale: float = option(1.0, "multiplies all frequencies of sinusoids and rotations")
    attention_logn: int | None = option(
        None,
        "with every variant: the number of tokens of a training sample; self-attention multiplies "
        "its logits by log N / log of this number, where a query sees N tokens; 0: off",
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
        """Raise ValueError for an option that the variant does not take."""
        variants.refuse_options(self.pos, vars(self), self.defaults(), spell, axes=self.axes)

    def embedding(self, dim: int, **options: Any) -> PositionalEmbedding:
        """The embedding that is added at the input, ``dim`` channels wide.

        ``options`` of :class:`cape_plugins.PositionalEmbedding` replace the settings' values. An
        option that the variant does not take has no effect.

        Raises:
            TypeError: PositionalEmbedding has no option of that name.
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
        """The positional attention of each layer; None leaves the host's own attention."""
        return variants.attention_layers(self.pos, layers, settings, self.attention_logn or 0)


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(PositionSettings):
    """The options of sequences; the host decides the unit of positions (tokens, seconds)."""

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
    """Split one mapping into the options about positions and all other options."""
    ours = {name: options[name] for name in settings.defaults() if name in options}
    return ours, {name: value for name, value in options.items() if name not in ours}
