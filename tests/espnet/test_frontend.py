"""The frontend ``cape_fbank``: features, timestamps, hops that equalise a batch."""

import math

import pytest
import torch

pytest.importorskip("espnet2")

from espnet2.asr.frontend.default import DefaultFrontend

from cape_plugins.espnet.frontend import CapeFbank

RATE = 8000


def dial(seconds: float, seed: int = 0, rate: int = RATE) -> torch.Tensor:
    """Telephone keys of 0.2 s in noise: a tone pair that changes."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(round(seconds * rate)) / rate
    key = (time / 0.2).long()
    low = torch.tensor([697.0, 770.0, 852.0, 941.0])[(key + seed) % 4]
    high = torch.tensor([1209.0, 1336.0, 1477.0])[key % 3]
    tones = torch.sin(2 * math.pi * low * time) + torch.sin(2 * math.pi * high * time)
    return 0.3 * tones + 0.02 * torch.randn(len(time), generator=generator)


def batch(*seconds: float, rate: int = RATE) -> tuple[torch.Tensor, torch.Tensor]:
    speech = [dial(duration, seed, rate) for seed, duration in enumerate(seconds)]
    lengths = torch.tensor([len(samples) for samples in speech])
    return torch.nn.utils.rnn.pad_sequence(speech, batch_first=True), lengths


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


def test_the_defaults_are_the_papers_at_espnets_rate():
    frontend = CapeFbank()
    assert (frontend.fs, frontend.win_length, frontend.hop_length) == (16000, 400, 160)
    assert (frontend.n_fft, frontend.output_size()) == (512, 80)
    assert frontend.frame_shift == 0.01


@pytest.mark.parametrize("fs", ["8k", "8000", 8000])
def test_window_and_hop_follow_the_sampling_rate_as_asr_sh_gives_it(fs):
    frontend = CapeFbank(fs=fs, n_mels=30)
    assert (frontend.win_length, frontend.hop_length, frontend.n_fft) == (200, 80, 256)


@pytest.mark.parametrize(
    "options", [{}, {"hop_length": 93}, {"win_length": 171}, {"win_length": 256}, {"n_fft": 500}]
)
def test_at_a_fixed_hop_the_features_are_espnets(options):
    frontend = make(**options)
    speech, lengths = batch(0.7)
    ours, our_lengths = frontend(speech, lengths)
    theirs, their_lengths = espnets(frontend, frontend.hop_length)(speech, lengths)
    assert our_lengths.tolist() == their_lengths.tolist()
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_padded_utterance_gives_the_features_it_gives_alone():
    frontend = make()
    speech, lengths = batch(1.0, 0.83, 0.4)
    features, frames = frontend(speech, lengths)
    assert frames.tolist() == [101, 84, 41]
    for index, length in enumerate(lengths.tolist()):
        alone, _ = frontend(speech[index : index + 1, :length], lengths[index : index + 1])
        torch.testing.assert_close(features[index, : frames[index]], alone[0])
        assert not features[index, frames[index] :].any()


@pytest.mark.parametrize("garbage", [1e6, math.nan])
def test_what_lies_in_the_padding_does_not_matter(garbage):
    frontend = make()
    speech, lengths = batch(1.0, 0.8)
    clean, _ = frontend(speech, lengths)
    speech[1, lengths[1] :] = garbage
    assert frontend(speech, lengths)[0].equal(clean)


def test_long_audio_is_cut_into_parts_without_a_seam():
    frontend = make(hop_length=40)
    speech, lengths = batch(170.0)
    features, frames = frontend(speech, lengths)
    assert frames.item() == 34_001  # more than are windowed at once
    around = speech[:, 32_768 * 40 - 8000 : 32_768 * 40 + 8000]
    middle, _ = frontend(around, torch.tensor([16_000]))
    torch.testing.assert_close(features[0, 32_700:32_800], middle[0, 132:232])


def test_half_precision_audio_is_transformed_in_single():
    frontend = make()
    speech, lengths = batch(0.5)
    features, _ = frontend(speech.bfloat16(), lengths)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, frontend(speech.bfloat16().float(), lengths)[0])


def test_the_state_is_the_mel_matrix_alone():
    assert list(make().state_dict()) == ["logmel.melmat"]


# --- timestamps and matched hops


def test_times_are_the_centres_of_the_frames_and_nan_in_padding():
    _, lengths, times = make().forward_with_times(*batch(1.0, 0.5))
    assert times.dtype == torch.float64
    torch.testing.assert_close(times[0], torch.arange(101).double() * 0.01)
    torch.testing.assert_close(times[1, :51], torch.arange(51).double() * 0.01)
    assert times[1, 51:].isnan().all()
    assert lengths.tolist() == [101, 51]


def test_an_hour_later_times_are_exact():
    frontend = make(fs=400, n_mels=2, hop_length=4)
    _, _, times = frontend.forward_with_times(torch.randn(1, 3600 * 400), torch.tensor([1440000]))
    exact = torch.arange(360_001, dtype=torch.float64) / 100
    torch.testing.assert_close(times[0], exact, rtol=1e-15, atol=0)


def test_the_hop_set_later_is_the_hop_used():
    frontend = make()
    frontend.hop_length = 64
    _, lengths, times = frontend.forward_with_times(*batch(1.0))
    assert lengths.tolist() == [126]
    assert times[0, 10].item() == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("options", "hops"),
    [
        ({}, [64, 98, 77]),  # 80 · (0.8, 1.23, 0.97): 64, 98.4, 77.6
        ({"hop_rounding": "round"}, [64, 98, 78]),
        ({"hop_unit": "milliseconds"}, [64, 96, 72]),  # 8, 12.3, 9.7 ms
        ({"hop_unit": "milliseconds", "hop_rounding": "round"}, [64, 96, 80]),
    ],
)
def test_hops_are_in_proportion_to_durations(options, hops):
    assert make(**options).matched_hops([6400, 9840, 7760]) == hops


@pytest.mark.parametrize("samples", [[4001], [7919] * 13])
@pytest.mark.parametrize("unit", ["samples", "milliseconds"])
def test_equal_durations_keep_the_nominal_hop(samples, unit):
    assert set(make(hop_unit=unit).matched_hops(samples)) == {80}


def test_matched_frames_are_equally_many_about_those_of_the_mean_duration():
    features, lengths, times = make().forward_with_times(
        *batch(1.3, 0.9, 1.12, 1.0), match_frames=True
    )
    mean = 100 * (1.3 + 0.9 + 1.12 + 1.0) / 4 + 1
    assert lengths.unique().tolist() == [features.shape[1]]
    assert features.shape[1] == pytest.approx(mean, abs=2)
    assert not times.isnan().any()


@pytest.mark.parametrize("unit", ["samples", "milliseconds"])
def test_each_matched_frame_is_the_frame_at_its_time(unit):
    frontend = make(hop_unit=unit)
    durations = [1.3, 0.9, 1.12, 1.0]
    speech, lengths = batch(*durations)
    torch.manual_seed(0)
    features, _, times = frontend.forward_with_times(speech, lengths, match_frames=True)
    hops = frontend.matched_hops(lengths.tolist())
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
    speech, lengths = batch(0.2, 0.24)
    assert frontend.matched_hops(lengths.tolist()) == [72, 80]  # 23 frames and 25
    torch.manual_seed(0)
    draws = 2000
    kept = torch.zeros(25)
    for _ in range(draws):
        _, frames, times = frontend.forward_with_times(speech, lengths, match_frames=True)
        assert frames.tolist() == [23, 23]
        kept[(times[1] * 100).round().long()] += 1
    expected = draws * 23 / 25
    deviation = (expected * 2 / 25) ** 0.5
    assert (kept - expected).abs().max() < 4 * deviation


def test_no_batch_within_the_ratio_has_a_hop_out_of_range():
    generator = torch.Generator().manual_seed(0)
    for unit in ("samples", "milliseconds"):
        for rounding in ("floor", "round"):
            frontend = make(hop_unit=unit, hop_rounding=rounding)
            assert frontend.max_duration_ratio == 2
            for shortest in (101, 5000, 160_001):
                for _ in range(50):
                    size = int(torch.randint(1, 12, (1,), generator=generator))
                    more = torch.randint(shortest + 1, (size,), generator=generator).tolist()
                    frontend.matched_hops([shortest, 2 * shortest, *(shortest + m for m in more)])
                frontend.matched_hops([2 * shortest] + [shortest] * 1000)
                frontend.matched_hops([shortest] + [2 * shortest] * 1000)


def test_espnets_own_call_gets_the_nominal_hop_even_in_training_and_is_told_so():
    frontend = make().train()
    speech, lengths = batch(1.0, 0.5)
    with pytest.warns(UserWarning, match="cape_asr"):
        _, frames = frontend(speech, lengths)
    assert frames.tolist() == [101, 51]


# --- bad input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fs": "fast"}, "16000 or 16k, got 'fast'"),
        ({"fs": 0}, "sampling rate in Hz"),
        ({"hop_length": 0}, "hop_length must be an integer ≥ 1, got 0"),
        ({"win_length": 2.5}, "win_length must be an integer"),
        ({"n_fft": 128}, "n_fft must be ≥ win_length=200, got 128"),
        ({"n_mels": "80"}, "n_mels must be an integer"),
        ({"window": "round"}, "window must be one of torch's"),
        ({"fmax": 4001}, "fs / 2 = 4000 Hz"),
        ({"fmin": 300, "fmax": 300}, "fmin < fmax"),
        ({"hop_unit": "ms"}, "one of samples, milliseconds, got 'ms'"),
        ({"hop_rounding": "ceil"}, "one of floor, round, got 'ceil'"),
        ({"fs": 22050, "hop_unit": "milliseconds"}, "divisible by 1000, got 22050"),
        ({"min_hop_ms": 11}, "nominal hop of 10 ms"),
        ({"max_hop_ms": math.inf}, "nominal hop of 10 ms"),
    ],
)
def test_a_bad_setting_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        make(**options)


def broken(case: str) -> tuple[torch.Tensor, torch.Tensor]:
    speech, lengths = batch(0.5, 0.4)
    if case == "stereo":
        return torch.stack([speech, speech], dim=2), lengths
    if case == "integers":
        return (speech * 1000).long(), lengths
    if case == "lengths":
        return speech, lengths[:1]
    if case == "beyond":
        lengths[1] = 4001
    elif case == "empty":
        lengths[1] = 0
    elif case == "short":
        lengths[1] = 100
    elif case == "nan":
        speech[1, 50] = math.nan
    elif case == "infinite":
        speech[1, 50] = -math.inf
    return speech, lengths


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("stereo", "one channel"),
        ("integers", "floating-point samples"),
        ("lengths", "speech_lengths must be"),
        ("beyond", "utterance 1 of the batch has length 4001"),
        ("empty", "utterance 1 of the batch is empty audio"),
        ("short", "utterance 1 of the batch is too short: 100 samples, and features need 101"),
        ("nan", "utterance 1 of the batch has samples that are NaN or infinite"),
        ("infinite", "utterance 1 of the batch has samples that are NaN or infinite"),
    ],
)
@pytest.mark.parametrize("match_frames", [False, True])
def test_bad_audio_is_refused(case, says, match_frames):
    with pytest.raises(ValueError, match=says):
        make().forward_with_times(*broken(case), match_frames=match_frames)


def test_the_shortest_audio_allowed_has_features():
    frontend = make()
    speech = dial(1.0)[None, : frontend.min_samples]
    features, lengths = frontend(speech, torch.tensor([frontend.min_samples]))
    assert lengths.tolist() == [2]
    assert features.isfinite().all()


def test_audio_too_short_is_the_error_that_asr_inference_forgives():
    from espnet2.bin.asr_inference import TooShortUttError

    with pytest.raises(TooShortUttError):
        make()(*broken("short"))


def test_a_batch_of_short_and_long_is_refused_in_training_only():
    frontend = make()
    speech, lengths = batch(3.0, 0.5)
    with pytest.raises(ValueError, match=r"0\.50 s, the mean is 1\.75 s: .*iterator_type: task"):
        frontend.forward_with_times(speech[[1, 0]], lengths[[1, 0]], match_frames=True)
    assert frontend(speech, lengths)[1].tolist() == [301, 51]
