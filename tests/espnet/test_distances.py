"""pos alibi and random: seconds of the real frames, as distances or as nothing but an order."""

import math

import pytest
import torch

pytest.importorskip("espnet2")

from cape_plugins.alibi import alibi_slopes
from cape_plugins.espnet.encoder import CapeTransformerEncoder
from cape_plugins.positions import frame_times

FEATURES = 20


def make(pos: str, **options) -> CapeTransformerEncoder:
    torch.manual_seed(0)
    sizes = dict(output_size=32, attention_heads=4, linear_units=64, num_blocks=2)
    return CapeTransformerEncoder(FEATURES, pos=pos, **sizes, **options)


def batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    return features, torch.tensor(lengths)


def test_alibi_counts_distances_in_thirtieths_of_a_second():
    encoder = make("alibi").eval()
    times = frame_times([9], 0.05)  # output frames 150 ms apart
    prepared = encoder.prepare(times[:, ::3])
    bias = encoder.layers[1].attention.relative.logits(torch.zeros(1, 4, 3, 8), 3, prepared)
    expected = -alibi_slopes(4) * 0.15 * 30
    torch.testing.assert_close(bias[0, :, 0, 1], expected)
    torch.testing.assert_close(bias[0, :, 2, 0], 2 * expected)


@pytest.mark.parametrize("pos", ["alibi", "cape_alibi"])
def test_the_clock_may_start_late_but_not_go_slow(pos):
    encoder = make(pos, frame_shift=0.1).eval()
    features, lengths = batch(163, 120)
    out = encoder(features, lengths)[0]
    later = encoder(features, lengths, times=frame_times(lengths, 0.1, 163) + 60)[0]
    torch.testing.assert_close(later, out, rtol=1e-4, atol=1e-4)
    slower = encoder(features, lengths, times=frame_times(lengths, 0.2, 163))[0]
    assert not torch.allclose(slower, out, atol=1e-3)


def test_what_each_option_of_cape_alibi_does():
    features, lengths = batch(60, 50)
    quiet = dict(dropout_rate=0, attention_dropout_rate=0, conv_dropout_rate=0, layer_drop_rate=0)
    for options, random in (
        (dict(max_local_shift=0.0, max_global_scale=1.0), False),
        (dict(max_local_shift=0.0, max_global_scale=2.0), True),
        (dict(max_global_scale=1.0), True),
    ):
        encoder = make("cape_alibi", **quiet, **options)
        first, second = (encoder(features, lengths)[0] for _ in range(2))
        assert torch.allclose(first, second, rtol=1e-3, atol=1e-4) != random
    with pytest.raises(ValueError, match=r"max_global_shift = 5\.0 is for cape"):
        make("cape_alibi", max_global_shift=5.0).train()


@pytest.mark.parametrize("pos", ["random", "random_rope"])
def test_only_the_order_and_the_number_of_frames_matter_for_random(pos):
    encoder = make(pos).eval()
    features, lengths = batch(60, 50)
    out = encoder(features, lengths)[0]
    for times in (frame_times(lengths, 0.5, 60), frame_times(lengths, 0.01, 60) ** 2 + 7):
        found = encoder(features, lengths, times=times)[0]
        torch.testing.assert_close(found, out, rtol=1e-4, atol=1e-4)


def test_random_spreads_frames_over_its_range_in_evaluation():
    encoder = make("random", random_range=30.0).eval()
    found = encoder.position.augmented(torch.tensor([[0.0, 0.03, 0.06, 0.09, math.nan]]), 1)
    expected = torch.tensor([[6.0, 12, 18, 24, math.nan]])
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "long"])
def test_a_range_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="random_range must be finite and > 0 seconds, got"):
        make("random", random_range=value)
