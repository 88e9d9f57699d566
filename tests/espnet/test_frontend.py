"""The frontend ``cape_fbank``: features, timestamps, hops that equalise a batch."""

import math

import pytest
import torch
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.bin.asr_inference import TooShortUttError

from cape_plugins.espnet.paper.frontend import CapeFbank
from espnet_support import audio

RATE = 8000


def make(**options) -> CapeFbank:
    return CapeFbank(**{"fs": RATE, "n_mels": 30, **options})


def espnets(frontend: CapeFbank, hop: int) -> DefaultFrontend:
    return DefaultFrontend(
        fs=frontend.fs,
        n_fft=frontend.n_fft,
        win_length=frontend.win_length,
        hop_length=hop,
        n_mels=frontend.output_size(),
    )


# --- features


def test_the_defaults_are_the_papers_at_any_rate_as_asr_sh_gives_it():
    frontend = CapeFbank()
    assert (frontend.fs, frontend.win_length, frontend.hop_length) == (16000, 400, 160)
    assert (frontend.n_fft, frontend.output_size()) == (512, 80)
    assert list(frontend.state_dict()) == ["logmel.melmat"]
    for fs in ("8k", "8000", 8000):
        frontend = make(fs=fs)
        assert (frontend.win_length, frontend.hop_length, frontend.n_fft) == (200, 80, 256)


@pytest.mark.parametrize(
    "options", [{}, {"hop_length": 93}, {"win_length": 171}, {"win_length": 256}, {"n_fft": 500}]
)
@pytest.mark.parametrize("remainder", [0, 1, -1])
def test_at_a_fixed_hop_the_features_are_espnets_to_the_last_frame(options, remainder):
    frontend = make(**options).double()
    samples = 60 * frontend.hop_length + remainder  # 0: the last frame is centred at the end
    speech, lengths = audio(1.0)[0][:, :samples].double(), torch.tensor([samples])
    ours, our_lengths = frontend(speech, lengths)
    theirs, their_lengths = espnets(frontend, frontend.hop_length).double()(speech, lengths)
    assert our_lengths.tolist() == their_lengths.tolist()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_padded_utterance_gives_the_features_it_gives_alone_whatever_the_padding():
    frontend = make()
    speech, lengths = audio(1.0, 0.83, 0.4)
    features, frames = frontend(speech, lengths)
    assert frames.tolist() == [101, 84, 41]
    for index, length in enumerate(lengths.tolist()):
        alone, _ = frontend(speech[index : index + 1, :length], lengths[index : index + 1])
        torch.testing.assert_close(features[index, : frames[index]], alone[0])
        assert not features[index, frames[index] :].any()
    for garbage in (1e6, math.nan):
        speech[1, lengths[1] :] = garbage
        assert frontend(speech, lengths)[0].equal(features)


def test_long_audio_is_cut_into_parts_without_a_seam():
    frontend = make(hop_length=40)
    speech, lengths = audio(170.0)
    features, frames = frontend(speech, lengths)
    assert frames.item() == 34_001  # more than are windowed at once
    around = speech[:, 32_768 * 40 - 8000 : 32_768 * 40 + 8000]
    middle, _ = frontend(around, torch.tensor([16_000]))
    torch.testing.assert_close(features[0, 32_700:32_800], middle[0, 132:232])


# --- timestamps and matched hops


def test_times_are_the_centres_of_the_frames_and_nan_in_padding():
    frontend = make()
    _, lengths, times = frontend.forward_with_times(*audio(1.0, 0.5))
    assert times.dtype == torch.float64
    torch.testing.assert_close(times[0], torch.arange(101).double() * 0.01)
    torch.testing.assert_close(times[1, :51], torch.arange(51).double() * 0.01)
    assert times[1, 51:].isnan().all()
    assert lengths.tolist() == [101, 51]
    frontend.hop_length = 64  # set later, for a sweep
    _, lengths, times = frontend.forward_with_times(*audio(1.0))
    assert lengths.tolist() == [126]
    assert times[0, 10].item() == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("unit", "hops"),
    [
        ("samples", [64, 98, 77]),  # 80 · (0.8, 1.23, 0.97): 64, 98.4, 77.6
        ("milliseconds", [64, 96, 72]),  # 8, 12.3, 9.7 ms
    ],
)
def test_hops_are_in_proportion_to_durations(unit, hops):
    frontend = make(hop_unit=unit)
    assert frontend.matched_hops(torch.tensor([6400, 9840, 7760])).tolist() == hops
    for samples in ([4001], [7919] * 13):  # equal durations keep the nominal hop exactly
        assert set(frontend.matched_hops(torch.tensor(samples)).tolist()) == {80}


@pytest.mark.parametrize("hop_unit", ["samples", "milliseconds"])
def test_each_matched_frame_is_the_frame_at_its_time(hop_unit):
    frontend = make(hop_unit=hop_unit)
    speech, lengths = audio(1.3, 0.9, 1.12, 1.0)
    torch.manual_seed(0)
    features, counts, times = frontend.forward_with_times(speech, lengths, match_frames=True)
    assert counts.unique().tolist() == [features.shape[1]]
    hops = frontend.matched_hops(lengths).tolist()
    dropped = 0
    for index, hop in enumerate(hops):
        alone = speech[index : index + 1, : lengths[index]]
        whole, _ = espnets(frontend, hop)(alone, lengths[index : index + 1])
        kept = (times[index].double() * RATE / hop).round().long()
        assert (kept.diff() > 0).all()
        torch.testing.assert_close(times[index], kept.double() * hop / RATE)
        torch.testing.assert_close(features[index], whole[0, kept], rtol=1e-3, atol=1e-3)
        dropped += whole.shape[1] - len(kept)
    assert dropped > 0


def test_surplus_frames_are_dropped_uniformly():
    frontend = make(n_mels=2, hop_unit="milliseconds")
    speech, lengths = audio(0.2, 0.24)
    assert frontend.matched_hops(lengths).tolist() == [72, 80]  # 23 frames and 25
    torch.manual_seed(0)
    draws, kept = 2000, torch.zeros(25)
    for _ in range(draws):
        _, frames, times = frontend.forward_with_times(speech, lengths, match_frames=True)
        assert frames.tolist() == [23, 23]
        kept[(times[1] * 100).round().long()] += 1
    expected = draws * 23 / 25
    deviation = (expected * 2 / 25) ** 0.5
    assert (kept - expected).abs().max() < 4 * deviation


def test_espnets_own_call_gets_the_nominal_hop_even_in_training_and_is_told_so():
    frontend = make().train()
    with pytest.warns(UserWarning, match="cape_asr"):
        _, frames = frontend(*audio(1.0, 0.5))
    assert frames.tolist() == [101, 51]


def test_matched_frames_are_read_once_from_the_device(monkeypatch):
    reads = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda t, name=name, real=real: reads.append(name) or real(t)
        )
    monkeypatch.setattr("cape_plugins.checks.is_traced", lambda: True)  # no checks
    make().forward_with_times(torch.randn(2, 8000), torch.tensor([8000, 7000]), match_frames=True)
    assert reads == ["tolist"]


# --- bad input


@pytest.mark.parametrize(
    "options",
    [
        {"fs": "fast"},
        {"fs": 0},
        {"hop_length": 0},
        {"win_length": 2.5},
        {"n_fft": 128},
        {"n_mels": "80"},
        {"window": "round"},
        {"hop_unit": "ms"},
        {"hop_unit": "milliseconds", "fs": 22050},
    ],
)
def test_a_bad_setting_is_refused_by_name(options):
    with pytest.raises(ValueError, match=rf"\b{next(iter(options))}\b"):
        make(**options)


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("stereo", r"\(2, 4000, 2\)"),
        ("lengths", "speech_lengths"),
        (4001, "4001"),
        (0, "101"),
        (100, "101"),
    ],
)
def test_bad_audio_is_refused(case, named):
    speech, lengths = audio(0.5, 0.4)
    if case == "stereo":
        speech = torch.stack([speech, speech], dim=2)
    elif case == "lengths":
        lengths = lengths[:1]
    else:
        lengths[1] = case
    with pytest.raises(ValueError, match=named):
        make().forward_with_times(speech, lengths, match_frames=True)


@pytest.mark.parametrize(("win_length", "n_fft"), [(200, 256), (171, 171)])
def test_shorter_audio_than_has_a_frame_is_what_asr_inference_forgives(win_length, n_fft):
    frontend = make(win_length=win_length, n_fft=n_fft, hop_length=1)
    least = frontend.min_samples
    features, lengths = frontend(audio(1.0)[0][:, :least], torch.tensor([least]))
    assert lengths.tolist() == [least + 1]
    assert features.isfinite().all()
    with pytest.raises(TooShortUttError, match=f"{least - 1} samples"):
        frontend(torch.zeros(1, least - 1), torch.tensor([least - 1]))


def test_a_batch_of_short_and_long_is_refused_in_training_only():
    frontend = make()
    speech, lengths = audio(3.0, 0.5)
    with pytest.raises(ValueError, match="iterator_type: task"):
        frontend.forward_with_times(speech[[1, 0]], lengths[[1, 0]], match_frames=True)
    assert frontend(speech, lengths)[1].tolist() == [301, 51]
