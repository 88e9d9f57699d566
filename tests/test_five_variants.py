"""Encodings of the literature, written as a stranger does: each is its paper's equation.

tests/support/five_variants.py has them; CHECKS run them in the hosts too.
"""

import itertools
import math

import pytest
import torch

from cape_plugins import Positions, testing, token_positions

CASES = [(pos, axes) for pos in ("kerple", "fourier", "shape", "rotations") for axes in (1, 2)]
CASES += [("xpos", 1)]
WHERE = token_positions([7])


@pytest.mark.parametrize("check", [c for c in testing.CHECKS if c is not testing.check_compile])
@pytest.mark.parametrize(("pos", "axes"), CASES)
def test_what_every_variant_does(eight, check, pos, axes):
    check(pos, axes)


def layer(pos, **sizes):
    """A variant in a layer with parameters off their first values, and random queries and keys."""
    positions = Positions(pos, dim=12, heads=3, layers=1, **sizes)
    (attention,) = positions.attentions
    for parameter in attention.parameters():
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    return positions, attention, torch.randn(2, 2, 3, 7, 4)


def test_kerple_falls_with_the_logarithm_of_the_distance(eight):
    positions, kerple, (query, key) = layer("kerple", spacing=0.04)
    _, given = positions(None, 0.04 * WHERE)
    apart = (WHERE[0, :, None] - WHERE[0]).abs()
    expected = -kerple.a[:, None, None] * torch.log(1 + kerple.b[:, None, None] * apart)
    torch.testing.assert_close(kerple.bias(query, key, given), expected[None])


def test_xpos_scores_see_distances_and_fall_with_them(eight):
    positions, xpos, (query, key) = layer("xpos")
    _, given = positions(None, WHERE)
    turned, other = xpos.embed_both(query, key, given)
    q, k = (torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) for x in (query, key))
    for i, j in itertools.product(range(7), range(7)):
        angle = torch.tensor([1.0, 0.01]) * (i - j)
        scale = (torch.tensor([0.4, 0.9]) / 1.4) ** ((i - j) / 512)
        expected = (q[:, :, i] * k[:, :, j].conj() * torch.polar(scale, angle)).sum(-1).real
        found = (turned[:, :, i] * other[:, :, j]).sum(-1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_learned_rotations_turn_each_head_by_its_own_frequencies(eight):
    positions, rotations, (query, key) = layer("rotations", spacing=0.5)
    _, given = positions(None, 0.5 * WHERE)
    turned, _ = rotations.embed_both(query, key, given)
    q = torch.view_as_complex(torch.stack(query.chunk(2, -1), -1))
    angles = WHERE[0, :, None] * rotations.frequencies[0]  # (heads, tokens, head_dim / 2)
    expected = q * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1))


def test_fourier_features_are_cosines_and_sines_of_learned_frequencies(eight):
    fourier = Positions("fourier", dim=12, axes=2).added
    where = torch.rand(1, 7, 2)
    phases = where @ fourier.frequencies
    features = torch.cat([phases.cos(), phases.sin()], -1) / math.sqrt(16)
    expected = fourier.network(features)
    torch.testing.assert_close(fourier.embedding(where, torch.float32), expected)


def test_shape_adds_a_whole_number_of_tokens_to_all_in_the_unit_of_the_host(eight):
    positions = Positions("shape", dim=12, spacing=0.04, shape_tokens=50)
    moved = positions.augment(0.04 * WHERE, 20)
    shift = (moved[..., 0] - 0.04 * WHERE) / 0.04  # (20, 7) tokens
    assert torch.allclose(shift, shift[:, :1].expand_as(shift), atol=1e-3)
    assert torch.allclose(shift, shift.round(), atol=1e-3)
    assert shift.min() > -0.1
    assert 5 < shift.max() < 50.1
    still = positions.eval().augment(0.04 * WHERE, 20)
    assert torch.equal(still[..., 0], 0.04 * WHERE)
