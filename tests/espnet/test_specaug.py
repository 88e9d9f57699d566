"""The SpecAugment ``cape_specaug``."""

import pytest
import torch
from espnet2.utils.get_default_kwargs import get_default_kwargs
from torch._subclasses.fake_tensor import FakeTensorMode

from cape_plugins.espnet.paper.specaug import CapeSpecAug

ONLY_TIME = dict(num_freq_mask=0)
ONLY_FREQ = dict(num_time_mask=0)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def masked(specaug: CapeSpecAug, lengths: list[int], channels: int = 80) -> torch.Tensor:
    """(B, T, channels), True where features were masked."""
    features = torch.ones(len(lengths), max(lengths), channels)
    out, out_lengths = specaug(features, torch.tensor(lengths))
    assert out_lengths.tolist() == lengths
    assert features.all()  # the input is left alone
    assert set(out.unique().tolist()) <= {0.0, 1.0}
    return out == 0


def test_the_defaults_are_the_papers():
    masks = dict(num_freq_mask=2, max_freq_mask_width=30, num_time_mask=10, max_time_mask_width=50)
    assert get_default_kwargs(CapeSpecAug) == {**masks, "max_time_mask_ratio": 0.1}


@pytest.mark.parametrize(
    ("frames", "longest"), [(2000, 50), (500, 50), (499, 49), (200, 20), (30, 3), (9, 0)]
)
def test_one_time_mask_covers_up_to_50_frames_and_a_tenth_of_the_utterance(frames, longest):
    mask = masked(CapeSpecAug(num_time_mask=1, **ONLY_TIME), [frames] * 1500, 1)[..., 0]
    widths = mask.sum(dim=1)
    assert set(widths.tolist()) == set(range(longest + 1))
    assert (widths == longest).float().mean() < 1.6 / (longest + 1)  # no more than others
    edges = mask.int().diff(dim=1).abs().sum(dim=1) + mask[:, 0].int() + mask[:, -1].int()
    assert edges.max() <= 2  # in one piece


def test_time_masks_reach_every_frame_of_each_utterance_and_none_of_its_padding():
    mask = masked(CapeSpecAug(**ONLY_TIME), [200, 120] * 1000, 1)[..., 0]
    long, short = mask[0::2].any(dim=0), mask[1::2].any(dim=0)
    assert long.all()
    assert short.tolist() == [True] * 120 + [False] * 80


def test_the_longest_time_mask_is_of_each_utterance_not_of_its_padding():
    mask = masked(CapeSpecAug(num_time_mask=1, **ONLY_TIME), [400, 100] * 1000, 1)[..., 0]
    widths = mask.sum(dim=1)
    assert (widths[0::2].max(), widths[1::2].max()) == (40, 10)


def test_frequency_masks_cover_up_to_30_channels_of_every_real_frame():
    mask = masked(CapeSpecAug(num_freq_mask=1, **ONLY_FREQ), [4] * 2000)
    assert mask.equal(mask[:, :1].expand_as(mask))
    assert set(mask[:, 0].sum(dim=1).tolist()) == set(range(31))
    assert mask[:, 0].any(dim=0).all()


def test_utterances_are_masked_each_on_its_own_and_anew_at_every_call():
    specaug = CapeSpecAug()
    first, second = masked(specaug, [300, 300]), masked(specaug, [300, 300])
    assert not first[0].equal(first[1])
    assert not first.equal(second)
    torch.manual_seed(0)
    assert first.equal(masked(specaug, [300, 300]))


def test_nothing_waits_for_a_gpu():
    with FakeTensorMode():
        counts = torch.empty(3, dtype=torch.long, device="cuda")
        features, _ = CapeSpecAug()(torch.empty(3, 201, 40, device="cuda"), counts)
    assert (features.shape, features.device.type) == ((3, 201, 40), "cuda")


@pytest.mark.parametrize("what", ["num_{}_mask", "max_{}_mask_width", "max_time_mask_ratio"])
@pytest.mark.parametrize("side", ["time", "freq"])
def test_a_bad_setting_is_refused(what, side):
    for value in (-1, "0.1", 1.1):
        with pytest.raises(ValueError, match=what.format(side)):
            CapeSpecAug(**{what.format(side): value})


def test_masks_wider_than_the_features_are_refused():
    with pytest.raises(ValueError, match="max_freq_mask_width"):
        CapeSpecAug()(torch.ones(1, 10, 20), torch.tensor([10]))
