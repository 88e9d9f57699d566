"""What the parts of a variant must know of the model that they are in, and what they share."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from cape_plugins.checks import check_count, check_positive
from cape_plugins.options import AXES, declared


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
        layer: of attention, the number of its layer, from 0.

    Raises:
        ValueError: a value is out of range, or ``heads`` do not divide ``dim``.
    """

    dim: int
    heads: int = 1
    head_dim: int = 0
    axes: int = 1
    spacing: float = 1.0
    layer: int = 0

    def __post_init__(self) -> None:
        check_count("dim", self.dim)
        check_count("heads", self.heads)
        check_count("head_dim", self.head_dim, least=0)
        check_count("layer", self.layer, least=0)
        check_positive("spacing", self.spacing)
        if self.axes not in AXES:
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
    (:func:`cape_plugins.option`), and its ``__post_init__`` checks their values and makes
    parameters as they are to be at first.

    Attributes:
        pos: the name of the variant, for errors.

    Raises:
        ValueError: sizes or options that the variant cannot serve.
    """

    sizes: Sizes
    pos = ""  # without an annotation, which would make it an option

    def __new__(cls, *given: Any, **options: Any) -> Any:
        """A module that can hold parameters, before ``__post_init__`` makes them."""
        made = super().__new__(cls)
        nn.Module.__init__(made)
        return made

    def __post_init__(self) -> None:
        """Nothing, here; a subclass calls its base class's first."""

    def reset_parameters(self) -> None:
        """Draw the parameters anew: those of a new instance.

        For hosts that draw all weights in a way of their own (ESPnet's ``init``).
        """
        self.load_state_dict(self.new().state_dict())

    def new(self) -> Any:
        """Another instance of these sizes and options, with parameters and buffers as at first."""
        options = {name: getattr(self, name) for name in declared(type(self), self.sizes.axes)}
        return type(self)(self.sizes, **options)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay leaves out, for hosts that ask (timm).

        Here all but the matrices of inner layers: tables, scalars and biases are left out, a
        ``nn.Linear``'s or a convolution's weight decays.
        """
        return {
            f"{name}.{one}".removeprefix(".")
            for name, module in self.named_modules()
            for one, parameter in module.named_parameters(recurse=False)
            if module is self or isinstance(module, nn.Embedding) or parameter.ndim < 2
        }

    def said(self, method: str) -> str:
        """How an error names a method: with its class and the variant."""
        of = f"variant {self.pos}: " if self.pos else ""
        return f"{of}{type(self).__name__}.{method}"

    def extra_repr(self) -> str:
        """The sizes, for ``print(model)``."""
        return str(self.sizes)
