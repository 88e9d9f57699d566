"""What every variant must do inside a host: the checks, once for all hosts that are installed.

A host's ``KINDS``, in its ``checks.py`` or its one module, say how a small model of each kind is
built and run, and where its tokens are. What is compared is written here, and called as the core's
checks are, which ``cape_plugins.testing.CHECKS`` has together with these.
"""

import functools
import importlib.util
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from cape_plugins import autoload, variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.host import Host


class Places(NamedTuple):
    """Where the tokens of a padded batch are, as the host should have it.

    Attributes:
        positions: (B, N), or (B, N, 2) of images, NaN in padding and of tokens that have none.
        mask: bool (B, 1 or N, N), True where a query sees a key.
        real: bool (B, N), False in padding.
    """

    positions: Tensor
    mask: Tensor
    real: Tensor


class Kind(ABC):
    """A kind of model of a host, for the checks: small, and the same for each seed.

    Attributes:
        name: with the host's.
        host: what it says of options.
        causal: whether no query sees a later token.
        takes_content: whether what is added may depend on the content.
        scales: whether content is multiplied by ``Positions.content_scale``.
        time_first: whether layers have (N, B, dim).
    """

    name: str
    host: Host
    causal, takes_content, scales, time_first = False, True, False, False

    @abstractmethod
    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        """A model."""

    @abstractmethod
    def samples(self) -> list[Tensor]:
        """Two samples, tokens first: of different lengths where the host pads."""

    @abstractmethod
    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        """What the layers make of each sample, (its tokens, channels), in one padded batch."""

    @abstractmethod
    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        """Where the tokens of the same batch are."""

    def stack(self, model: Any) -> Any:
        """What has the layers and the core's module as ``layers`` and ``positions``."""
        return model

    def reload(self, model: Any, new: Any, folder: Path) -> nn.Module:
        """What was saved, as the host loads it; ``new`` is a model of other weights."""
        torch.save(model.state_dict(), folder / "weights.pt")
        new.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
        return new

    def ways(self, model: Any, samples: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
        """What else gives what :meth:`run` does: steps with a cache of keys, texts in one row."""
        yield from ()


class TokenKind(Kind):
    """A kind of model whose samples are texts: their tokens are counted without padding.

    Attributes:
        padding: the token's number; those of words are 4 … 43.
        pads_left: whether it stands before the words.
    """

    padding, pads_left = 0, False

    def samples(self) -> list[Tensor]:
        """Tokens of two texts."""
        drawn = torch.Generator().manual_seed(0)
        return [torch.randint(4, 44, (length,), generator=drawn) for length in (7, 5)]

    def batch(self, samples: Sequence[Tensor]) -> Tensor:
        """Tokens (B, N), padded."""
        turn = (lambda x: x.flip(-1)) if self.pads_left else (lambda x: x)
        rows = [turn(one) for one in samples]
        return turn(nn.utils.rnn.pad_sequence(rows, True, self.padding))

    def unpadded(self, out: Tensor, samples: Sequence[Tensor]) -> list[Tensor]:
        """Rows (B, N, channels) of a batch without padding."""
        return [
            row[real] for row, real in zip(out, self.batch(samples) != self.padding, strict=True)
        ]

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        """Tokens are counted."""
        real = self.batch(samples) != self.padding
        where = (real.cumsum(1) - 1.0).masked_fill(~real, torch.nan)
        seen = real[:, None].expand(-1, real.shape[1], -1)
        return Places(where, seen.tril() if self.causal else seen, real)


def kinds(axes: int) -> list[Kind]:
    """The kinds of model of the hosts that are installed."""
    found: list[Kind] = []
    for package, (first, *_) in autoload.hosts().items():
        if importlib.util.find_spec(first.partition(".")[0]):
            host = importlib.import_module(package)
            if not hasattr(host, "KINDS"):
                host = importlib.import_module(f"{package}.checks")
            found += host.KINDS
    return [kind for kind in found if kind.host.axes == axes]


def made(kind: Kind, pos: str, seed: int = 0, **options: Any) -> Any:
    """A model in evaluation whose parameters have been moved: many are 0 or 1 at first."""
    given = {name: value for name, value in options.items() if name not in kind.host.sets}
    return _made(kind, variants.get(pos, kind.host.axes), pos, seed, tuple(given.items()))


@functools.lru_cache(maxsize=32)  # a start of fairseq's takes half a second
def _made(kind: Kind, variant: Any, pos: str, seed: int, options: tuple[tuple[str, Any]]) -> Any:
    model = kind.build(pos, seed, **dict(options)).eval()
    moves = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=moves))
    return model


class Seen:
    """What goes through a model's layers in a forward.

    Attributes:
        given, out: of each layer, content (B, N, dim).
        attended: layer → the variant's attention in it, its queries, keys and values, and what it
            gave, (B, heads, N, head_dim).
    """

    def __init__(self, kind: Kind, model: Any, instead: Sequence[Tensor] = ()) -> None:
        """Run the model on its samples; each layer gets the content ``instead``, if there is."""
        self.given: list[Tensor] = []
        self.out: list[Tensor] = []
        self.attended: dict[int, tuple[Any, Tensor, Tensor, Tensor, Tensor]] = {}

        def turned(x: Tensor) -> Tensor:
            return x.transpose(0, 1) if kind.time_first else x

        def before(layer: Any, args: Any) -> Any:
            self.given.append(turned(_first(args)))
            if not instead:
                return args
            content = turned(instead[len(self.out)])
            first = content if isinstance(args[0], Tensor) else (content, *args[0][1:])
            return (first, *args[1:])

        def attended(part: PositionalAttention, args: Any, out: Any) -> None:
            if part.acts:
                self.attended[len(self.out)] = part, *args[:3], out[0]

        hooks = []
        for layer in kind.stack(model).layers:
            hooks.append(layer.register_forward_pre_hook(before))
            after = lambda _, args, out: self.out.append(turned(_first(out)))  # noqa: E731
            hooks.append(layer.register_forward_hook(after))
        parts = (one for one in model.modules() if isinstance(one, PositionalAttention))
        hooks += [part.register_forward_hook(attended) for part in parts]
        try:
            kind.run(model, kind.samples())
        finally:
            for hook in hooks:
                hook.remove()


def _first(found: Any) -> Tensor:
    """The content in what a layer gets or gives."""
    while not isinstance(found, Tensor):
        found = found[0]
    return found


def check_host_output(kind: Kind, pos: str, **options: Any) -> None:
    """Content and attention of each layer are the core's, and all else is the host's own."""
    model, plain = made(kind, pos, **options), made(kind, "nopos")
    weights = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(weights[name])
    seen, core = Seen(kind, model), kind.stack(model).positions
    own = Seen(kind, plain, instead=seen.given)
    where, mask, real = kind.places(model, kind.samples())
    # where sinusoids are added; a decoder's core does it too
    scale = core.content_scale ** (kind.scales - core.causal)
    content, given = core(own.given[0] * scale, where, mask)
    placed = real & ~(where if where.ndim == 2 else where[..., 0]).isnan()
    _same(seen.given[0][placed], content[placed], "what is added")
    there = {*seen.attended}
    acting = {number for number, one in enumerate(core.layers) if one is not None}
    assert there == acting, f"it attends in layers {sorted(there)}, not {sorted(acting)}"
    for layer, (found, expected) in enumerate(zip(seen.out, own.out, strict=True)):
        if layer in there:
            part, *attends, found = seen.attended[layer]
            found, expected = (x.transpose(1, 2) for x in (found, part(*attends, given)[0]))
        _same(found[real], expected[real], f"layer {layer}")


def check_host_hides(kind: Kind, pos: str, **options: Any) -> None:
    """Padding, and what comes later in a decoder, changes no token before it."""
    model, samples = made(kind, pos, **options), kind.samples()
    together = kind.run(model, samples)
    for index, one in enumerate(samples):
        assert together[index].isfinite().all(), "NaN where there is padding"
        (alone,) = kind.run(model, [one])
        _same(together[index], alone, f"sample {index} beside another")
    if kind.causal:
        kept = len(samples[0]) // 2
        other = torch.cat([samples[0][:kept], samples[0][kept:].flip(0)])
        (changed,) = kind.run(model, [other])
        _same(changed[:kept], together[0][:kept], "tokens before one that is another")


def check_host_saves(kind: Kind, pos: str, **options: Any) -> None:
    """What is saved and loaded gives the same."""
    model, new = (made(kind, pos, seed, **options) for seed in (0, 1))
    with tempfile.TemporaryDirectory() as folder:
        again = kind.reload(model, new, Path(folder)).eval()
        for found, expected in zip(
            *(kind.run(x, kind.samples()) for x in (again, model)), strict=True
        ):
            _same(found, expected, "what was saved and loaded")


def check_host_ways(kind: Kind, pos: str, **options: Any) -> None:
    """Steps with a cache of keys, and texts packed into one row, give what the whole gives."""
    model, samples = made(kind, pos, **options), kind.samples()
    whole = kind.run(model, samples)
    for how, found in kind.ways(model, samples):
        for one, expected in zip(found, whole, strict=True):
            _same(one, expected, how)


def _same(found: Tensor, expected: Tensor, what: str) -> None:
    how: dict[str, Any] = dict(rtol=1e-4, atol=2e-5)
    assert_close(found, expected, **how, msg=lambda said: f"{what} differs: {said}")


def in_each(check: Callable[..., None]) -> Callable[..., None]:
    """A check of this module for all hosts that are installed, as those of the core are called."""

    @functools.wraps(check)
    @torch.no_grad()
    def of_hosts(pos: str, axes: int, **options: Any) -> None:
        adds = variants.get(pos, axes).adds
        for kind in kinds(axes):
            if adds is not None and adds.needs_content() and not kind.takes_content:
                continue
            try:
                check(kind, pos, **options)
            except Exception as error:
                raise AssertionError(f"{pos} in {kind.name}: {error}") from error

    return of_hosts


_HERE = check_host_output, check_host_hides, check_host_saves, check_host_ways
CHECKS = tuple(map(in_each, _HERE))
