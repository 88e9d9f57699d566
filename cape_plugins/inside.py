"""What every variant must do inside a host: the checks, once for all hosts that are installed.

A host's ``checks.py`` has its ``KINDS``: how a small model of each kind is built and run, and where
its tokens are. What is compared is written here, and called as the core's checks are, which
``cape_plugins.testing.CHECKS`` has together with these.
"""

import dataclasses
import functools
import importlib
import importlib.util
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.positions import Positions

#: our package for a host → the host's own
HOSTS = {"timm": "timm", "fairseq": "fairseq", "espnet": "espnet2", "transformers": "transformers"}
CLOSE: dict[str, Any] = dict(rtol=1e-4, atol=2e-5)


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
        axes: of its positions.
        causal: whether no query sees a later token.
        takes_content: whether what is added may depend on the content.
        sets: options that the host sets itself.
        time_first: whether layers have (N, B, dim).
    """

    name: str
    axes = 1
    causal = False
    takes_content = True
    sets: frozenset[str] = frozenset()
    time_first = False

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

    def scale(self, core: Positions) -> float:
        """What the content is multiplied by where this variant's positions are added."""
        return 1.0

    def reload(self, model: Any, new: Any, folder: Path) -> nn.Module:
        """What was saved, as the host loads it; ``new`` is a model of other weights."""
        torch.save(model.state_dict(), folder / "weights.pt")
        new.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
        return new

    def cached(self, model: Any, samples: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
        """How, and what :meth:`run` gives in steps with a cache of keys; none without one."""
        yield from ()

    def packed(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor] | None:
        """What :meth:`run` gives for samples that stand in one row; None where there is none."""
        return None


def kinds(axes: int) -> list[Kind]:
    """The kinds of model of the hosts that are installed."""
    there = [host for host, module in HOSTS.items() if importlib.util.find_spec(module)]
    found = [importlib.import_module(f"cape_plugins.{host}.checks").KINDS for host in there]
    return [kind for of in found for kind in of if kind.axes == axes]


def made(kind: Kind, pos: str, seed: int = 0, **options: Any) -> Any:
    """A model in evaluation whose parameters have been moved: many are 0 or 1 at first."""
    given = {name: value for name, value in options.items() if name not in kind.sets}
    return _made(kind, variants.get(pos, kind.axes), pos, seed, tuple(given.items()))


@functools.lru_cache(maxsize=32)  # a start of fairseq's takes half a second
def _made(kind: Kind, variant: Any, pos: str, seed: int, options: tuple[tuple[str, Any]]) -> Any:
    model = kind.build(pos, seed, **dict(options)).eval()
    moves = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=moves))
    return model


def without(kind: Kind, model: nn.Module) -> Any:
    """A model of the same weights without positions."""
    plain = made(kind, "nopos")
    weights = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(weights[name])
    return plain


def core_of(kind: Kind, model: Any) -> Positions:
    """The core's module, anew, by what the host's says of itself."""
    stack = kind.stack(model)
    theirs, sizes = stack.positions, dataclasses.asdict(stack.positions.sizes)
    del sizes["layer"]  # each layer's own
    # timm shows ε in words
    options = {k: getattr(theirs.augmentation, k, one) for k, one in theirs.options.items()}
    core = Positions(theirs.pos, **sizes, layers=len(stack.layers), **options).eval()
    if core.added is not None:
        core.added.load_state_dict(theirs.added.state_dict())
    return core


class Seen:
    """What goes through a model's layers in a forward.

    Attributes:
        given, out: of each layer, content (B, N, dim).
        attended: layer → the variant's attention in it, its queries, keys and values, and what it
            gave, (B, heads, N, head_dim).
    """

    def __init__(self, kind: Kind, model: Any, instead: Sequence[Tensor] = ()) -> None:
        self.given: list[Tensor] = []
        self.out: list[Tensor] = []
        self.attended: dict[int, tuple[Any, Tensor, Tensor, Tensor, Tensor]] = {}
        swap = functools.partial(torch.transpose, dim0=0, dim1=1) if kind.time_first else _same

        def before(layer: Any, args: Any, named: Any) -> Any:
            if instead:
                args = (_put(args[0], swap(instead[len(self.given)])), *args[1:])
            self.given.append(swap(_first(args)))
            return args, named

        def after(layer: Any, args: Any, out: Any) -> None:
            self.out.append(swap(_first(out)))

        def attended(part: PositionalAttention, args: Any, out: Any) -> None:
            if part.acts:
                self.attended[len(self.out)] = part, *args[:3], out[0]

        hooks: list[Any] = []
        for layer in kind.stack(model).layers:
            hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(layer.register_forward_hook(after))
        for part in model.modules():
            if isinstance(part, PositionalAttention):
                hooks.append(part.register_forward_hook(attended))
        try:
            kind.run(model, kind.samples())
        finally:
            for hook in hooks:
                hook.remove()


def _same(x: Tensor) -> Tensor:
    return x


def _first(found: Any) -> Tensor:
    """The content in what a layer gets or gives."""
    while not isinstance(found, Tensor):
        found = found[0]
    return found


def _put(given: Any, content: Tensor) -> Any:
    """A layer's first argument with other content in it."""
    return content if isinstance(given, Tensor) else (content, *given[1:])


def check_host_output(kind: Kind, pos: str, **options: Any) -> None:
    """Content and attention of each layer are the core's, by the same weights."""
    model = made(kind, pos, **options)
    where, mask, real = kind.places(model, kind.samples())
    core, seen, plain = core_of(kind, model), Seen(kind, model), Seen(kind, without(kind, model))
    content, given = core(plain.given[0] * kind.scale(core), where, mask)
    placed = real & ~(where if where.ndim == 2 else where[..., 0]).isnan()
    _same_as(seen.given[0][placed], content[placed], "what is added")
    acting = {index for index, one in enumerate(core.attentions) if one.acts}
    acting = acting if core.variant.attends else set()
    there = {*seen.attended}
    assert there == acting, f"it attends in layers {sorted(there)}, not {sorted(acting)}"
    for index, (part, query, key, value, out) in seen.attended.items():
        layer = core.attentions[index]
        layer.load_state_dict(part.state_dict())
        expected, _ = layer(query, key, value, given)
        found, expected = (x.transpose(1, 2)[real] for x in (out, expected))
        _same_as(found, expected, f"attention of layer {index}")


def check_host_layers(kind: Kind, pos: str, **options: Any) -> None:
    """A layer in which the variant does not act is the host's own, for the same content."""
    model = made(kind, pos, **options)
    seen, real = Seen(kind, model), kind.places(model, kind.samples()).real
    others = Seen(kind, without(kind, model), instead=seen.given)
    for index, (found, expected) in enumerate(zip(seen.out, others.out, strict=True)):
        if index not in seen.attended:
            _same_as(found[real], expected[real], f"layer {index}, which it leaves alone")


def check_host_hides(kind: Kind, pos: str, **options: Any) -> None:
    """Padding, and what comes later in a decoder, changes no token before it."""
    model, samples = made(kind, pos, **options), kind.samples()
    together = kind.run(model, samples)
    for index, one in enumerate(samples):
        assert together[index].isfinite().all(), "NaN where there is padding"
        (alone,) = kind.run(model, [one])
        _same_as(together[index], alone, f"sample {index} beside another")
    if kind.causal:
        kept = len(samples[0]) // 2
        other = torch.cat([samples[0][:kept], samples[0][kept:].flip(0)])
        (changed,) = kind.run(model, [other])
        _same_as(changed[:kept], together[0][:kept], "tokens before one that is another")


def check_host_saves(kind: Kind, pos: str, **options: Any) -> None:
    """What is saved and loaded gives the same."""
    model, new = (made(kind, pos, seed, **options) for seed in (0, 1))
    with tempfile.TemporaryDirectory() as folder:
        again = kind.reload(model, new, Path(folder)).eval()
        samples = kind.samples()
        for found, expected in zip(kind.run(again, samples), kind.run(model, samples), strict=True):
            _same_as(found, expected, "what was saved and loaded")


def check_host_caches(kind: Kind, pos: str, **options: Any) -> None:
    """Steps with a cache of keys give what the whole gives."""
    model, samples = made(kind, pos, **options), kind.samples()
    whole = kind.run(model, samples)
    for how, steps in kind.cached(model, samples):
        for found, expected in zip(steps, whole, strict=True):
            _same_as(found, expected, f"in steps with a {how} cache")


def check_host_packs(kind: Kind, pos: str, **options: Any) -> None:
    """Samples packed into one row give what each gives alone."""
    model, samples = made(kind, pos, **options), kind.samples()
    packed = kind.packed(model, samples)
    for one, found in zip(samples, packed or (), strict=packed is not None):
        (alone,) = kind.run(model, [one])
        _same_as(found, alone, "what is packed into one row")


def _same_as(found: Tensor, expected: Tensor, what: str) -> None:
    assert_close(found, expected, **CLOSE, msg=lambda said: f"{what} differs: {said}")


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


CHECKS = tuple(
    in_each(check)
    for check in (
        check_host_output,
        check_host_layers,
        check_host_hides,
        check_host_saves,
        check_host_caches,
        check_host_packs,
    )
)
