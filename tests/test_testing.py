"""``cape_plugins.testing``: every variant passes all checks, and a wrong one does not."""

import itertools
from pkgutil import resolve_name

import pytest
import torch

from cape_plugins import (
    Added,
    Given,
    PositionalAttention,
    Positions,
    Variant,
    inside,
    register_variant,
    testing,
)
from cape_support import OURS, odd

QUICK = [check for check in testing.CHECKS if check is not testing.check_compile]


@pytest.mark.parametrize("check", QUICK)
@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_ours_do_what_every_variant_does(check, pos, axes):
    check(pos, axes)  # tests/test_compilers.py compiles them


def apart(given_or_queries, keys=None) -> torch.Tensor:
    """Distances (B, queries, keys), NaN where one has no position."""
    queries, keys = given_or_queries[:2] if keys is None else (given_or_queries, keys)
    return (keys[:, None, :, 0] - queries[:, :, None, 0]).abs()


def prepare(change):
    """A method ``prepare`` that hands changed (queries, keys, mask) to the base class's."""

    def prepared(self, queries, keys, mask, dtype):
        return PositionalAttention.prepare(self, *change(queries, keys, mask), dtype)

    return prepared


def by_the_mean(queries, keys, mask):
    queries = queries.nan_to_num()
    return queries - queries.mean(1, keepdim=True), keys.nan_to_num(), mask


def with_an_idle_parameter(self):
    PositionalAttention.__post_init__(self)
    self.idle = torch.nn.Parameter(torch.ones(3))


def with_a_gate(self):
    PositionalAttention.__post_init__(self)
    self.gate = torch.nn.Parameter(torch.zeros(()))


def with_a_forgotten_buffer(self):
    PositionalAttention.__post_init__(self)
    self.register_buffer("drawn", torch.rand(self.sizes.head_dim), persistent=False)


def counted(self, x, rows):
    return x * (1 + torch.arange(x.shape[2], device=x.device))[:, None]


def in_two_graphs(self, x, rows):
    torch._dynamo.graph_break()
    return x


TIMES = dict(embed=lambda self, x, rows: x * (1 + rows[..., :1])[:, None])
NO_MASK = dict(prepare=prepare(lambda q, k, m: (q, k, None)))
BOOLS_ALONE = dict(
    prepare=prepare(lambda q, k, m: (q, k, m if m is not None and m.dtype == torch.bool else None))
)
DOUBLED = dict(embed=lambda self, x, rows: x * x.shape[0] / rows.shape[0])
GATED = dict(  # which is 0 at first, and hides it
    __post_init__=with_a_gate, embed=lambda self, x, rows: x + self.gate * x.mean(0, keepdim=True)
)
STEEP = dict(  # its gradient is not finite
    __post_init__=with_a_gate, embed=lambda self, x, rows: x + (0 * self.gate).sqrt()
)
FORGETS = dict(__post_init__=with_a_forgotten_buffer, embed=lambda self, x, rows: x * self.drawn)
CALLS = itertools.count(1)


@pytest.mark.parametrize(
    ("check", "methods"),
    [
        ("check_padding", NO_MASK),
        ("check_padding", BOOLS_ALONE),
        ("check_mask", NO_MASK),
        ("check_batch", dict(embed=lambda self, x, rows: x - x.mean(dim=0, keepdim=True))),
        ("check_batch", DOUBLED),
        ("check_batch", GATED),
        # a key by the positions of others, which a cache does not have
        ("check_cache", dict(prepare=prepare(by_the_mean), **TIMES)),
        ("check_training", dict(__post_init__=with_an_idle_parameter)),
        ("check_training", dict(embed=lambda self, x, rows: x * next(CALLS))),
        ("check_training", STEEP),
        ("check_half_precision", dict(embed=lambda self, x, rows: (x + 300) - 300)),
        ("check_checkpoint", FORGETS),
        ("check_compile", dict(embed=in_two_graphs)),
    ],
)
def test_a_wrong_variant_does_not_pass(own_table, monkeypatch, check, methods):
    monkeypatch.setattr("cape_plugins.positions.try_out", lambda part: None)
    register_variant("wrong", Variant(attends=odd(PositionalAttention, **methods), axes=(1,)))
    with pytest.raises((AssertionError, torch._dynamo.exc.Unsupported)):
        getattr(testing, check)("wrong", 1)


def test_a_mark_that_takes_every_checkpoint_does_not_pass(monkeypatch):
    monkeypatch.setattr("cape_plugins.mark.VariantMark.load_state_dict", lambda *_: None)
    with pytest.raises(AssertionError, match="take each other's checkpoints"):
        testing.check_checkpoint("rope", 1)


def test_a_token_without_a_position_gets_nothing_added(own_table):
    ones = odd(Added, embedding=lambda self, at, dtype: torch.ones(*at.shape[:2], self.sizes.dim))
    register_variant("wrong", Variant(adds=ones))
    with pytest.raises(AssertionError, match="without a position"):
        testing.check_methods("wrong", 1)


def clears(self, queries, keys, mask, dtype):
    return Given(queries.nan_to_num_(0.0), mask=mask)


def adds_to_rows(self, x, rows):
    rows.nan_to_num_(0.0).add_(1.0)
    return x


def clears_and_widens(self, at, dtype):
    return at.nan_to_num_(0.0).expand(-1, -1, self.sizes.dim)


def blind(self, queries, keys, mask, dtype):
    return Given(bias=apart(queries, keys).nan_to_num()[:, None])


# of a base class, a method that is wrong
ATTENDS = {
    "without heads": dict(bias=lambda self, query, key, given: apart(given).nan_to_num()),
    "without keys": dict(bias=lambda self, query, key, given: query.detach().sum(-1)),
    "fewer channels": dict(embed=lambda self, x, rows: x[..., :2]),
    "NaN in a bias": dict(bias=lambda self, query, key, given: -apart(given)[:, None]),
    "NaN in a row": dict(embed=lambda self, x, rows: x * rows[:, None].cos()),
    "writes into positions": dict(prepare=clears),
    "writes into rows": dict(embed=adds_to_rows),
    "not Given": dict(prepare=lambda self, queries, *_: queries),
    "without the mask": dict(prepare=blind),
}
ADDS = {
    "one channel": dict(embedding=lambda self, at, dtype: at.nan_to_num()),
    "NaN added": dict(embedding=lambda self, at, dtype: at.expand(-1, -1, self.sizes.dim).cos()),
    "writes into what is added": dict(embedding=clears_and_widens),
    "the mean of all": dict(add=lambda self, x, at: x + x.mean(dim=1, keepdim=True)),
}


def register_odd(what: str, **more) -> None:
    if what in ADDS:
        register_variant("odd", Variant(adds=odd(Added, **ADDS[what]), axes=(1,)))
    else:
        attends = odd(PositionalAttention, **ATTENDS[what])
        register_variant("odd", Variant(attends=attends, axes=(1,), **more))


WRITES = r" writes into .*clone\(\)"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("without heads", r"bias .*\[2, 3, 8, 8\].* gave \[2, 8, 8\]"),
        ("without keys", r"bias .*\[2, 3, 8, 8\].* gave \[2, 3, 8\]"),
        ("fewer channels", r"embed .*\[2, 3, 8, 8\]: it gave \[2, 3, 8, 2\]"),
        ("NaN in a bias", "bias gives NaN .*nan_to_num"),
        ("NaN in a row", "embed gives NaN"),
        ("writes into positions", f"prepare{WRITES}"),
        ("writes into rows", f"embed or bias{WRITES}"),
        ("one channel", r"embedding .*\[2, 8, 24\]: it gave \[2, 8, 1\]"),
        ("NaN added", "embedding gives NaN"),
        ("writes into what is added", f"embedding{WRITES}"),
    ],
)
def test_what_a_method_gives_wrongly_is_told_with_variant_and_method(
    own_table, monkeypatch, what, says
):
    monkeypatch.setattr("cape_plugins.positions.try_out", lambda part: None)
    register_odd(what)
    with pytest.raises(AssertionError, match=rf"variant odd: Odd\.{says}") as told:
        testing.check_methods("odd", 1)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("NaN in a bias", "Odd gives NaN .*nan_to_num"),
        ("NaN in a row", "Odd gives NaN"),
        ("NaN added", "Odd gives NaN"),
        ("not Given", r"Odd\.prepare must return Given\("),
        ("without the mask", "Odd lets a query see a key that the mask hides"),
        ("the mean of all", "Odd lets a query see a key that the mask hides"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_what_hurts_in_silence_is_told_when_a_model_is_built(own_table, what, says, shared):
    register_odd(what, one_for_all=shared and what != "not Given")
    with pytest.raises(ValueError, match=f"variant odd: {says}") as told:
        Positions("odd", dim=12, heads=3, layers=2)
    assert "\n" not in str(told.value)


# Inside the hosts


def seen_by_all(self, queries, keys, mask, dtype):
    return Given(bias=torch.zeros(1, 1, queries.shape[1], keys.shape[1]))


def by_the_last(self, x, rows):
    return x * (1 + rows[:, -1:].nan_to_num())[:, None].to(x.dtype)


@pytest.mark.parametrize(
    ("check", "host", "methods"),
    [
        ("check_host_hides", "fairseq's cape_transformer_lm", dict(prepare=seen_by_all)),
        ("check_host_hides", "ESPnet's cape_transformer", dict(embed=by_the_last)),
        ("check_host_saves", "transformers' cape_llama", FORGETS),
        ("check_host_ways", "transformers' cape_llama", dict(embed=counted)),
    ],
)
def test_a_wrong_variant_does_not_pass_inside_a_host(own_table, monkeypatch, check, host, methods):
    monkeypatch.setattr("cape_plugins.positions.try_out", lambda part: None)
    model = next((one for one in inside.kinds(axes=1) if one.name == host), None)
    if model is None:
        pytest.skip("not installed")
    register_variant("wrong", Variant(attends=odd(PositionalAttention, **methods), axes=(1,)))
    with pytest.raises(AssertionError):
        getattr(inside, check)(model, "wrong")


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
    pytest.importorskip({"ESPnet": "espnet2"}.get(host, host))
    inside.kinds(axes)  # they are imported
    path = f"cape_plugins.{path}"
    made = resolve_name(path)

    def doubled(*args, **named):
        found = made(*args, **named)
        return (2 * found[0], *found[1:]) if isinstance(found, tuple) else 2 * found

    monkeypatch.setattr(path, doubled)
    with pytest.raises(AssertionError, match=f"{pos} in {host}.* differs"):
        next(one for one in inside.CHECKS if one.__name__ == "check_host_output")(pos, axes)
