"""Weights are read inside the forward of the module that has them, where hooks act on them.

Offload to CPU or disk, ZeRO-3, FSDP, pruning and replicas of nn.DataParallel rely on it.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from cape_plugins import Given, PositionalAttention, Positions, Variant, register_variant
from cape_plugins.attention import with_heads
from cape_plugins.testing import Kept, model
from cape_support import replica

pytestmark = pytest.mark.usefixtures("eight")
WITH_WEIGHTS = ("abspos", "relpos", "relpos_first", "t5", "t5_shared", "cope")
WITH_WEIGHTS += ("conditional", "kerple", "fourier", "rotations")
WHERE = torch.arange(6.0)[None]


def offload(module: nn.Module) -> None:
    """As accelerate's cpu_offload: weights are there from a module's call to its end alone."""
    kept = {name: one.detach().clone() for name, one in module.named_parameters(recurse=False)}

    def fetch(this, *_):
        for name, value in kept.items():
            getattr(this, name).data.copy_(value)

    def leave(this, *_):
        for name in kept:
            getattr(this, name).data.fill_(math.nan)

    leave(module)
    module.register_forward_pre_hook(fetch)
    module.register_forward_hook(leave)


@pytest.mark.parametrize("pos", WITH_WEIGHTS)
@torch.no_grad()
def test_offloaded_weights_are_there_when_they_are_read(pos):
    torch.manual_seed(0)
    made, x = model(pos, 1), torch.randn(2, 6, 24)
    expected = made(x, WHERE)
    for module in {*made.modules()}:
        offload(module)
    assert all(one.isnan().all() for one in made.parameters())
    torch.testing.assert_close(made(x, WHERE), expected)
    if pos == "abspos":  # a host adds it itself
        assert made.positions(None, WHERE)[0].isfinite().all()


@pytest.mark.parametrize("pos", ["relpos", "cope", "t5_shared"])
@torch.no_grad()
def test_offloaded_weights_are_there_in_a_step_with_a_cache(pos):
    made = model(pos, 1)
    attention, positions = made.positions.attentions[0], made.positions
    query, key, value = torch.randn(3, 1, 3, 6, 8)
    seen = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    expected, _ = attention(query, key, value, positions(None, WHERE, seen)[1])
    offload(attention)
    cache, steps = Kept(), []
    for t in range(6):
        now = slice(t, t + 1)
        _, given = positions(None, WHERE[:, now], keys=WHERE[:, : t + 1])
        new = query[:, :, now], key[:, :, now], value[:, :, now]
        steps.append(attention(*new, given, cache=cache)[0])
    torch.testing.assert_close(torch.cat(steps, dim=2), expected)


@pytest.mark.parametrize("pos", WITH_WEIGHTS)
def test_pruned_weights_train(pos):
    made, x = model(pos, 1).train(), torch.randn(2, 6, 24)
    owners = [(one, name) for one in made.modules() for name in one._parameters]
    for one, name in owners:
        prune.l1_unstructured(one, name, 0.5)
    steps = torch.optim.SGD(made.parameters(), lr=0.1)
    for _ in range(2):  # a mask that acted once alone would go backward twice
        steps.zero_grad()
        made(x, WHERE).square().mean().backward()
        steps.step()
    for one, name in owners:
        assert (getattr(one, name) == 0).float().mean() >= 0.4


@pytest.mark.parametrize("reentrant", [False, True])
def test_one_module_of_all_layers_learns_alike_under_both_kinds_of_checkpointing(reentrant):
    def gradient(run):
        torch.manual_seed(0)
        made = model("t5_shared", 1).train()
        query = torch.randn(1, 3, 6, 8, requires_grad=True)
        _, given = made.positions(None, WHERE)
        x = query
        for attention in made.positions.attentions:
            x = run(lambda one, layer=attention: layer(one, one + 1, one - 1, given)[0], x)
        x.square().sum().backward()
        return made.positions.attentions[0].table.grad

    expected = gradient(lambda layer, x: layer(x))
    found = gradient(lambda layer, x: checkpoint(layer, x, use_reentrant=reentrant))
    assert expected.any()
    torch.testing.assert_close(found, expected)


class Turns(PositionalAttention):
    """A variant with a buffer that ``prepare`` reads, as most rotary code has."""

    def __post_init__(self):
        super().__post_init__()
        self.register_buffer("rates", torch.ones(1), persistent=False)

    def prepare(self, queries, keys, mask, dtype):
        rows = queries.nan_to_num(0.0) * self.rates
        return Given(rows, rows, with_heads(mask))

    def embed(self, x, rows):
        return x * rows[:, None]


def test_a_replica_prepares_by_its_own_modules_or_says_that_it_cannot():
    register_variant("turns", Variant(attends=Turns))
    made = Positions("turns", dim=24, heads=3, layers=2).eval()
    copy = replica(made)
    copy.attentions[0].rates = torch.full((1,), 5.0)  # on another GPU it is another tensor
    assert torch.equal(copy(None, WHERE)[1].queries, 5.0 * WHERE[..., None])
    made.hand_over()  # a host's layers have them, and their buffers are on the first device
    assert torch.equal(replica(made)(None, WHERE)[1].queries, WHERE[..., None])
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        replica(made)(None, WHERE.to("meta"))
