"""PoSE: two chunks, one skip, within the range; as the authors' code draws."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import frame_times, token_positions
from cape_plugins.pose import SkippedPositions
from cape_support import seeded


def draw(positions, batch=None, seed=0, **options):
    batch = len(positions) if batch is None else batch
    return SkippedPositions(**options).in_training(positions, batch, generator=seeded(seed))


def tokens(*lengths):
    return token_positions(list(lengths))[..., None]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 200),
    st.integers(0, 2**31),
)
def test_two_chunks_and_one_skip_of_whole_tokens(lengths, span, seed):
    given = tokens(*lengths)
    moved = draw(given, seed=seed, pose_range=float(span))
    assert torch.equal(moved.isnan(), given.isnan())
    for row, length in zip(moved[..., 0], lengths, strict=True):
        steps = row[:length].diff()
        assert row[0] == 0
        assert (steps >= 1).all()
        assert (steps > 1).sum() <= 1
        assert torch.equal(steps, steps.round())
        assert row[length - 1] <= max(length, span) - 1
        if (steps > 1).any():  # the first chunk has at most half of the tokens
            assert 1 <= int((steps > 1).nonzero()) + 1 <= (length + 1) // 2


def test_chunk_and_skip_are_uniform_as_in_the_authors_code():
    moved = draw(tokens(8), batch=40_000, pose_range=20.0)[..., 0]
    skip = moved[:, -1] - 7
    counts = torch.bincount(skip.long(), minlength=13)
    assert len(counts) == 13  # 0 … target - length
    torch.testing.assert_close(counts / 40_000, torch.full((13,), 1 / 13), rtol=0, atol=0.008)
    first = (moved.diff() == 1).cumprod(1).sum(1)[skip > 0] + 1
    shares = torch.bincount(first.long(), minlength=5)[1:] / (skip > 0).sum()
    torch.testing.assert_close(shares, torch.full((4,), 1 / 4), rtol=0, atol=0.01)


def test_seconds_skip_by_frames():
    seconds = frame_times([50], 0.03, dtype=torch.float64)[..., None]
    moved = draw(seconds, batch=100, pose_range=30.0)
    frames = (moved - moved[:, :1]) / 0.03
    torch.testing.assert_close(frames, frames.round(), rtol=0, atol=1e-6)
    assert 20 < moved.max() <= 30


def test_samples_differ_padding_is_nothing_and_evaluation_is_as_given():
    long = torch.cat([tokens(9), torch.full((1, 30, 1), math.nan)], dim=1)
    both = [draw(one, batch=5, pose_range=64.0)[:, :9] for one in (tokens(9), long)]
    assert torch.equal(*both)
    moved = draw(tokens(16), batch=8, pose_range=500.0)
    assert len(moved[:, -1, 0].unique()) > 4
    augmentation = SkippedPositions(pose_range=500.0)
    assert torch.equal(augmentation.in_evaluation(tokens(16)), tokens(16))
    assert not augmentation.needs_whole_sequence(training=False)
    assert augmentation.needs_whole_sequence(training=True)


@pytest.mark.parametrize("span", [0.0, -3.0, math.inf, "long"])
def test_a_range_that_is_none_is_refused(span):
    with pytest.raises(ValueError, match="pose_range"):
        SkippedPositions(pose_range=span)


def test_a_range_below_the_text_is_said_where_nothing_skips():
    positions = token_positions([12])[..., None]
    with pytest.warns(UserWarning, match=r"pose_range 10 .* 12"):
        moved = SkippedPositions(pose_range=10.0).in_training(positions, batch_size=2)
    assert torch.equal(moved, positions.expand(2, -1, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SkippedPositions(pose_range=12.0).in_training(positions, batch_size=2)
