"""What the parts of a variant must know of the model that they are in, and what they share."""

from dataclasses import dataclass

from torch import nn

from cape_plugins.checks import check_count, check_positive


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a model whose layers are alike.

    Attributes:
        dim: channels of the content, and of what is added to it.
        heads: number of heads of self-attention.
        head_dim: channels of a head. Default (0): ``dim / heads``.
        axes: of a position: 1 in sequences, 2 in images.
        spacing: between neighbouring tokens, in the unit of positions: 1 token, the seconds between
            frames, the distance between neighbouring patches in training. Options that count
            tokens, such as the context of relative positions, are divided by it.

    Raises:
        ValueError: a value is out of range, or ``heads`` do not divide ``dim``.
    """

    dim: int
    heads: int = 1
    head_dim: int = 0
    axes: int = 1
    spacing: float = 1.0

    def __post_init__(self) -> None:
        check_count("dim", self.dim)
        check_count("heads", self.heads)
        check_count("head_dim", self.head_dim, least=0)
        check_positive("spacing", self.spacing)
        if self.axes not in (1, 2):
            raise ValueError(f"axes must be 1 (sequences) or 2 (images), got {self.axes!r}")
        if self.head_dim == 0:
            if self.dim % self.heads:
                raise ValueError(f"{self.heads} heads do not divide {self.dim} channels")
            object.__setattr__(self, "head_dim", self.dim // self.heads)

    def tokens(self, name: str, length: float) -> int:
        """The tokens in a length in the unit of positions: the nearest number.

        Raises:
            ValueError: the length, an option called ``name``, is not at least one token.
        """
        check_positive(name, length)
        if length < self.spacing:
            raise ValueError(f"{name} must be ≥ {self.spacing:g}, one token, got {length!r}")
        return round(length / self.spacing)


@dataclass(eq=False, repr=False)
class Part(nn.Module):
    """A part of a variant that is a module: what it adds, or what it does in attention.

    A subclass is a dataclass too, ``@dataclass(eq=False, repr=False)``. Its fields are its options
    (:func:`cape_plugins.option`), and its ``__post_init__`` calls this one's before it makes
    parameters.

    Raises:
        ValueError: sizes or options that the variant cannot serve.
    """

    sizes: Sizes

    def __post_init__(self) -> None:
        super().__init__()

    def extra_repr(self) -> str:
        """The sizes, for ``print(model)``."""
        return str(self.sizes)
