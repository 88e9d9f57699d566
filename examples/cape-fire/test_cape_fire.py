"""FIRE is the paper's equation, in each host's kinds of positions."""

import math

import pytest
import torch
from torch import Tensor, nn

from cape_fire import Fire
from cape_plugins import Positions, Sizes, inside, patch_grid, testing, token_positions

CAUSAL = torch.ones(1, 6, 6, dtype=torch.bool).tril()


def layer(unit: float | None = None, **about: float) -> Fire:
    """A layer whose c and L are no longer as at first, and whose L lies among the distances."""
    torch.manual_seed(0)
    sizes = Sizes(dim=12, heads=3, **about)
    fire = Fire(sizes, fire_width=5, fire_threshold=8.0, fire_unit=unit)
    nn.init.constant_(fire.c, 0.7)
    nn.init.constant_(fire.multiplier, -0.25)
    return fire


def random(tokens: int = 6) -> list[Tensor]:
    """Queries, keys and values, (2, heads, tokens, head_dim)."""
    return [*torch.randn(3, 2, 3, tokens, 4)]


def bias(fire: Fire, positions: Tensor, mask: Tensor | None = None) -> Tensor:
    tokens = positions.shape[1]
    query, key, _ = random(tokens)
    return fire.bias(query, key, fire.prepare(positions, positions, mask, query.dtype))


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("check", testing.CHECKS)
def test_what_every_variant_does(check, axes):
    check("fire", axes, fire_width=8)


@pytest.mark.parametrize("axes", [1, 2])
def test_checks_inside_hosts_are_of_the_options_that_are_given(axes):
    for kind in inside.kinds(axes):
        core = kind.stack(inside.made(kind, "fire", fire_width=8)).positions
        assert core.options["fire_width"] == 8, kind.name


@pytest.mark.parametrize("mask", [CAUSAL, torch.zeros(1, 6, 6).masked_fill(~CAUSAL, -torch.inf)])
def test_in_a_decoder_it_is_the_papers_equation(mask):
    fire = layer()
    found = bias(fire, token_positions([6])[..., None], mask)
    assert found.shape == (1, 3, 6, 6)
    for i in range(6):
        for j in range(i + 1):
            ratio = math.log(0.7 * (i - j) + 1) / math.log(0.7 * max(0.25 * 8, i) + 1)
            torch.testing.assert_close(found[0, :, i, j], fire.function(torch.tensor([ratio])))


def test_in_an_encoder_a_query_sees_as_far_as_the_farthest_token_on_either_side():
    fire = layer()
    found = bias(fire, torch.tensor([[[0.0], [1.0], [7.0]]]))
    for query, far in enumerate([7.0, 6.0, 7.0]):
        for key, apart in enumerate([[0.0, 1.0, 7.0], [1.0, 0.0, 6.0], [7.0, 6.0, 0.0]][query]):
            ratio = math.log(0.7 * apart + 1) / math.log(0.7 * far + 1)
            torch.testing.assert_close(
                found[0, :, query, key], fire.function(torch.tensor([ratio]))
            )


def test_a_mask_of_each_head_hides_what_no_head_sees():
    fire, positions = layer(), token_positions([6, 6])[..., None]
    mask = CAUSAL.expand(2, 3, 6, 6).clone()
    mask[:, 1] = False
    torch.testing.assert_close(bias(fire, positions, mask), bias(fire, positions, CAUSAL))


def test_distances_count_in_tokens_whatever_the_unit_and_a_shift_changes_nothing():
    tokens = torch.tensor([[[0.0], [1.0], [2.5], [9.0]]])
    seconds = 3600 + 0.04 * tokens.double()
    expected = bias(layer(), tokens)
    torch.testing.assert_close(bias(layer(spacing=0.04), seconds), expected)
    torch.testing.assert_close(bias(layer(unit=0.04, spacing=0.01), seconds), expected)
    assert not torch.allclose(bias(layer(), 2 * tokens), expected)  # FIRE is not scale-free


def test_in_images_distances_are_euclidean_and_a_class_token_is_near_all_patches():
    fire = layer(axes=2, spacing=2 / 3)
    none = torch.full([1, 1, 2], torch.nan)
    grid = torch.cat([none, patch_grid(4, 4)[None]], dim=1)
    found = bias(fire, grid)[0]
    near = fire.function(torch.zeros(1))[:, None]
    torch.testing.assert_close(found[:, 0], near.expand(3, 17))
    torch.testing.assert_close(found[:, :, 0], near.expand(3, 17))
    corner = found[:, 1].unflatten(1, [1 + 16])[:, 1:].unflatten(1, [4, 4])
    torch.testing.assert_close(corner, corner.transpose(1, 2))  # as far along either axis
    ratio = math.log(0.7 * math.hypot(1, 2) + 1) / math.log(0.7 * math.hypot(3, 3) + 1)
    torch.testing.assert_close(corner[:, 1, 2], fire.function(torch.tensor([ratio])))


def test_each_layer_learns_a_function_and_a_c_and_an_l_of_its_own():
    model = Positions("fire", dim=12, heads=3, layers=2, fire_threshold=40.0)
    first, second = model.attentions
    assert not torch.equal(first.function[0].weight, second.function[0].weight)
    _, given = model(None, token_positions([6, 4]))
    out, _ = first(*random(), given)
    out.square().sum().backward()
    assert all(one.grad.isfinite().all() for one in first.parameters())
    assert first.c.grad.abs() > 0
    assert first.multiplier.grad.abs() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_keep_positions_in_float32(dtype):
    fire, (query, key, value) = layer(), random()
    positions = 30_000 + token_positions([6, 6])[..., None]  # coarser in half precision
    expected, _ = fire(query, key, value, fire.prepare(positions, positions, None, query.dtype))
    with torch.autocast("cpu", dtype):
        found, _ = fire(query, key, value, fire.prepare(positions, positions, None, query.dtype))
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)
    fire, (query, key, value) = fire.to(dtype), (x.to(dtype) for x in (query, key, value))
    found, _ = fire(query, key, value, fire.prepare(positions, positions, None, query.dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_options_out_of_range_are_refused():
    wrongs = {"fire_width": 0}, {"fire_width": 2.5}, {"fire_threshold": 0.0}, {"fire_unit": -1.0}
    for wrong in wrongs:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Fire(Sizes(dim=12, heads=3), **wrong)


def test_capes_augmentation_moves_positions_and_draws_no_shift():
    cape_fire = Positions("cape_fire", dim=12, heads=3, layers=1, max_local_shift=0.4)
    _, moved = cape_fire(None, token_positions([6]), draw=cape_fire.draw(2, torch.device("cpu")))
    _, still = cape_fire.eval()(None, token_positions([6]))
    assert moved.pairs.shape == (2, 6, 6)
    assert not torch.allclose(moved.pairs[:1], still.pairs)
    with pytest.raises(ValueError, match=r"max_global_shift .*: cape_fire takes"):
        Positions("cape_fire", dim=12, heads=3, layers=1, max_global_shift=5.0)
