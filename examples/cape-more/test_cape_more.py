"""T5's buckets, CoPE and conditional convolutions are those of their papers."""

import importlib

import pytest
import torch
import torch.nn.functional as F

from cape_plugins import Positions, Sizes, patch_grid, testing, token_positions, variants

NAMES = ("t5", "t5_shared", "cope", "conditional")
CASES = [(pos, axes) for pos in NAMES for axes in (1, 2) if (pos, axes) != ("cope", 2)]
WHERE = token_positions([9])[..., None]
LINE, PLANE = Sizes(dim=12, heads=3), Sizes(dim=12, heads=3, axes=2, spacing=2 / 3)


@pytest.fixture(scope="module", autouse=True)
def more():
    """The package; where it is not installed, its variants are there for these tests alone."""
    there = variants.names(1)
    later, variants._LATER = variants._LATER, []  # no host is told, which would keep the names
    package = importlib.import_module("cape_more")
    variants._LATER = later
    yield package
    for table in variants.TABLE.values() if "t5" not in there else ():
        for pos in NAMES:
            table.pop(pos, None)


@pytest.mark.parametrize("check", [c for c in testing.CHECKS if c is not testing.check_compile])
@pytest.mark.parametrize(("pos", "axes"), CASES)
def test_what_every_variant_does(check, pos, axes):
    check(pos, axes)


@pytest.mark.release
@pytest.mark.parametrize(("pos", "axes"), CASES)
def test_a_compiler_takes_them_whole(pos, axes):
    testing.check_compile(pos, axes)


def test_buckets_are_those_of_transformers(more):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    where = token_positions([300])[..., None]
    found = more.T5(LINE).buckets(where, where)[0, ..., 0]
    apart = torch.arange(300)[None] - torch.arange(300)[:, None]
    theirs = t5.T5Attention._relative_position_bucket(apart, True, 32, 128)
    assert torch.equal(found, theirs)


def test_distances_count_in_tokens_and_those_of_both_axes_are_added(more):
    seconds = more.T5(Sizes(dim=12, heads=3, spacing=0.04))
    expected = more.T5(LINE).buckets(WHERE, WHERE)
    assert torch.equal(seconds.buckets(0.04 * WHERE, 0.04 * WHERE), expected)
    grid, plane = patch_grid(4, 4)[None], more.T5(PLANE)
    numbers = plane.numbers(plane.buckets(grid, grid))
    assert numbers.shape == (1, 3, 16, 16)
    down, right = plane.table[0, 16 + 3], plane.table[1, 16 + 2]  # 3 and 2 patches ahead
    torch.testing.assert_close(numbers[0, :, 0, 3 * 4 + 2], down + right)


def test_one_table_serves_all_layers_and_learns_of_all():
    shared = Positions("t5_shared", dim=12, heads=3, layers=3)
    assert len({id(one) for one in shared.attentions}) == 1
    assert len([*shared.parameters()]) == 1
    assert len([*Positions("t5", dim=12, heads=3, layers=3).parameters()]) == 3
    _, given = shared(torch.randn(2, 9, 12), WHERE[..., 0])
    one, other = shared.attentions[:2]
    query, key, value = torch.randn(3, 2, 3, 9, 4)
    both = one(query, key, value, given)[0] + other(value, query, key, given)[0]
    both.square().sum().backward()
    assert shared.attentions[2].table.grad.any()


def paper_cope(query, logits, vectors):
    """The listing of the paper, for a decoder: what is added to the logits (…, N, N)."""
    gates = torch.sigmoid(logits).tril()
    count = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=vectors.shape[1] - 1)
    low, high = count.floor().long(), count.ceil().long()
    scores = query @ vectors
    weight = count - low
    return scores.gather(-1, high) * weight + scores.gather(-1, low) * (1 - weight)


def test_cope_is_the_papers_in_a_decoder(more):
    cope = more.Cope(LINE, cope_most=5)
    cope.vectors.data.normal_()
    query, key, _ = torch.randn(3, 2, 3, 9, 4)
    found = cope.bias(query, key, cope.prepare(WHERE, WHERE, None, query.dtype))
    scaled = query / 2  # head_dim^-½
    expected = paper_cope(scaled, scaled @ key.transpose(2, 3), cope.vectors)
    torch.testing.assert_close(found.tril(), expected.tril())
    step = cope.prepare(WHERE[:, -1:], WHERE, None, query.dtype)
    torch.testing.assert_close(cope.bias(query[:, :, -1:], key, step), found[:, :, -1:])


def test_what_is_added_is_a_convolution_of_the_content(more):
    content, line, plane = torch.randn(2, 12, 12), more.Conditional(LINE), more.Conditional(PLANE)
    kernel = line.weight.T[:, None]  # (dim, 1, 3)
    expected = F.conv1d(content.transpose(1, 2), kernel, padding=1, groups=12).transpose(1, 2)
    where = token_positions([12])[..., None]
    torch.testing.assert_close(line.add(content, where) - content, expected)
    image = content.transpose(1, 2).unflatten(2, (3, 4))
    kernel = plane.weight.T.view(12, 1, 3, 3)
    expected = F.conv2d(image, kernel, padding=1, groups=12).flatten(2).transpose(1, 2)
    torch.testing.assert_close(plane.add(content, patch_grid(3, 4)[None]) - content, expected)


def test_options_out_of_range_are_refused(more):
    for wrong in (dict(t5_buckets=6), dict(t5_buckets=2), dict(t5_furthest=4.0)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            more.T5(LINE, **wrong)
    with pytest.raises(ValueError, match="cope_most"):
        more.Cope(LINE, cope_most=1)
