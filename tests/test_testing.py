"""``cape_plugins.testing``: every variant passes all checks, and a wrong one does not."""

from dataclasses import dataclass
from pkgutil import resolve_name

import pytest
import torch

from cape_plugins import (
    Given,
    PositionalAttention,
    Variant,
    inside,
    register_variant,
    testing,
)
from cape_support import OURS

QUICK = [check for check in testing.CHECKS if check is not testing.check_compile]


@pytest.mark.parametrize("check", QUICK)
@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_ours_do_what_every_variant_does(check, pos, axes):
    check(pos, axes)  # tests/test_compilers.py compiles them


@dataclass(eq=False, repr=False)
class Batch(PositionalAttention):
    """Looks at other samples."""

    def embed(self, x, rows):
        return x - x.mean(dim=0, keepdim=True)


@dataclass(eq=False, repr=False)
class Neighbour(PositionalAttention):
    """Embeds a key by the positions of others, which a cache does not have."""

    def prepare(self, queries, keys, mask, dtype):
        first, second = (x.nan_to_num() for x in (queries, keys))
        return super().prepare(first - first.mean(1, keepdim=True), second, mask, dtype)

    def embed(self, x, rows):
        return x * (1 + rows[..., :1])[:, None]


@dataclass(eq=False, repr=False)
class Blind(PositionalAttention):
    """Has no mask."""

    def prepare(self, queries, keys, mask, dtype):
        return super().prepare(queries, keys, None, dtype)


@dataclass(eq=False, repr=False)
class BlindToNumbers(PositionalAttention):
    """Has no mask that is added to the scores."""

    def prepare(self, queries, keys, mask, dtype):
        taken = mask is not None and mask.dtype == torch.bool
        return super().prepare(queries, keys, mask if taken else None, dtype)


@dataclass(eq=False, repr=False)
class Doubles(PositionalAttention):
    """Is another where samples share their positions."""

    def embed(self, x, rows):
        return x * x.shape[0] / rows.shape[0]


@dataclass(eq=False, repr=False)
class Idle(PositionalAttention):
    """Has a parameter that nobody uses."""

    def __post_init__(self):
        super().__post_init__()
        self.idle = torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Batch, testing.check_batch),
        (Neighbour, testing.check_cache),
        (Blind, testing.check_mask),
        (Blind, testing.check_padding),
        (BlindToNumbers, testing.check_padding),
        (Doubles, testing.check_batch),
        (Idle, testing.check_training),
    ],
)
def test_a_wrong_variant_does_not_pass(own_table, monkeypatch, kind, check):
    monkeypatch.setattr("cape_plugins.positions.try_out", lambda part: None)
    register_variant("wrong", Variant(attends=kind, axes=(1,)))
    with pytest.raises(AssertionError):
        check("wrong", 1)


# Inside the hosts


@dataclass(eq=False, repr=False)
class SeesAll(PositionalAttention):
    """What all layers add to the scores has no mask in it."""

    def prepare(self, queries, keys, mask, dtype):
        return Given(bias=torch.zeros(1, 1, queries.shape[1], keys.shape[1]))


@dataclass(eq=False, repr=False)
class Forgets(PositionalAttention):
    """Has a buffer that is not saved, and other numbers each time."""

    def __post_init__(self):
        super().__post_init__()
        self.register_buffer("drawn", torch.rand(self.sizes.head_dim), persistent=False)

    def embed(self, x, rows):
        return x * self.drawn


@dataclass(eq=False, repr=False)
class Counts(PositionalAttention):
    """Is at the rows of a tensor, whatever the positions are."""

    def embed(self, x, rows):
        return x * (1 + torch.arange(x.shape[2], device=x.device))[:, None]


@dataclass(eq=False, repr=False)
class Widens(PositionalAttention):
    """Is another where the last token has no position."""

    def embed(self, x, rows):
        return x * (1 + rows[:, -1:].nan_to_num())[:, None].to(x.dtype)


@pytest.mark.parametrize(
    ("kind", "check", "host"),
    [
        (SeesAll, inside.check_host_hides, "fairseq's cape_transformer_lm"),
        (Forgets, inside.check_host_saves, "transformers' cape_llama"),
        (Counts, inside.check_host_caches, "transformers' cape_llama"),
        (Counts, inside.check_host_packs, "transformers' cape_llama"),
        (Widens, inside.check_host_hides, "ESPnet's cape_transformer"),
    ],
)
def test_a_wrong_variant_does_not_pass_inside_a_host(own_table, monkeypatch, kind, check, host):
    monkeypatch.setattr("cape_plugins.positions.try_out", lambda part: None)
    model = next((one for one in inside.kinds(axes=1) if one.name == host), None)
    if model is None:
        pytest.skip("not installed")
    register_variant("wrong", Variant(attends=kind, axes=(1,)))
    with pytest.raises(AssertionError):
        check(model, "wrong")


@pytest.mark.parametrize(
    ("host", "axes", "path", "pos"),
    [
        ("fairseq", 1, "fairseq.transformer.positions_in_batch", "cape"),
        ("ESPnet", 1, "espnet.encoder.frame_times", "alibi"),
        ("transformers", 1, "transformers.models.count", "rope"),
        ("timm", 2, "timm.vision_transformer.grid_with_prefix", "rope"),
        ("timm", 2, "timm.naflexvit.after_prefix", "sinpos"),
    ],
)
def test_a_host_whose_positions_are_others_is_named(monkeypatch, host, axes, path, pos):
    """Ours for it makes them twice as large."""
    pytest.importorskip(inside.HOSTS[host.lower()])
    inside.kinds(axes)  # they are imported
    path = f"cape_plugins.{path}"
    made = resolve_name(path)

    def doubled(*args, **named):
        found = made(*args, **named)
        return (2 * found[0], *found[1:]) if isinstance(found, tuple) else 2 * found

    monkeypatch.setattr(path, doubled)
    with pytest.raises(AssertionError, match=f"{pos} in {host}.* differs"):
        next(one for one in inside.CHECKS if one.__name__ == "check_host_output")(pos, axes)
