"""The model ``cape_asr``: timestamps to the encoder, features as in the paper, no padding."""

import pytest
import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.bin.asr_inference import TooShortUttError
from espnet2.layers.utterance_mvn import UtteranceMVN
from espnet2.utils.get_default_kwargs import get_default_kwargs
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from cape_plugins.espnet.paper.model import CapeASRModel, normalize_utterances
from cape_support import replica
from espnet_support import SIZES, STOCK, audio

SPECAUG = {"specaug": "cape_specaug", "specaug_conf": {"max_freq_mask_width": 6}}
UNEVEN = (1.2, 0.9, 1.05, 1.1)  # seconds


def espnets(**options) -> dict:
    """ESPnet's frontend, with other options."""
    return {**STOCK, "frontend_conf": {**STOCK["frontend_conf"], **options}}


def encoder(**options) -> dict:
    return {"encoder_conf": {**SIZES, "linear_units": 32, **options}}


def spy(module: torch.nn.Module) -> list:
    """Collects what the module is called with: (features, lengths, keywords)."""
    calls: list = []

    def note(module, arguments, keywords):
        calls.append((arguments[0].detach().clone(), arguments[1], keywords))

    module.register_forward_pre_hook(note, with_kwargs=True)
    return calls


# --- timestamps and padding


def test_in_training_nothing_is_padded_and_the_encoder_knows_the_times(build):
    model = build().train()
    calls = spy(model.encoder)
    out, out_lengths = model.encode(*audio(*UNEVEN))
    features, frames, keywords = calls[0]
    times = keywords["times"]
    assert set(frames.tolist()) == {features.shape[1]} == {times.shape[1]}
    assert features.shape[1] == pytest.approx(100 * sum(UNEVEN) / 4, abs=2)
    assert set(out_lengths.tolist()) == {out.shape[1]}
    assert (times.diff(dim=1) > 0).all()
    ends = times[:, -1]
    assert (ends - torch.tensor(UNEVEN)).abs().max() < 0.05  # each lasts as long as it did


def test_in_evaluation_a_padded_utterance_gives_what_it_gives_alone(build):
    model = build().eval()
    speech, lengths = audio(1.2, 0.5, 0.8)
    out, out_lengths = model.encode(speech, lengths)
    assert out_lengths.tolist() == [41, 17, 27]  # ⌈101 · seconds / 3⌉ at the nominal hop
    for index, length in enumerate(lengths.tolist()):
        alone, _ = model.encode(speech[index : index + 1, :length], lengths[index : index + 1])
        torch.testing.assert_close(out[index, : out_lengths[index]], alone[0], rtol=1e-4, atol=1e-4)


def test_training_reaches_every_parameter(build):
    model = build(**SPECAUG, **encoder(layer_drop_rate=0.0)).train()
    text = torch.tensor([[2, 3, 4]] * 4), torch.tensor([3] * 4)
    loss, _, weight = model(*audio(*UNEVEN), *text)
    loss.backward()
    assert loss.isfinite()
    assert weight == 4
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("center", "first", "frames"), [(True, 0.0, 121), (False, 0.016, 117)])
def test_with_espnets_frontend_the_times_are_those_of_its_windows_middles(
    center, first, frames, training, build
):
    model = build(**espnets(center=center, win_length=256)).train(training)
    calls = spy(model.encoder)
    model.encode(*audio(1.2, 0.6))
    times = calls[0][2]["times"]
    expected = first + torch.arange(frames).double() * 0.01
    torch.testing.assert_close(times[0], expected)
    torch.testing.assert_close(times[1, : frames - 60], expected[: frames - 60])
    assert times[1, frames - 60 :].isnan().all()


def test_features_from_the_data_loader_have_the_encoders_frame_shift(build, caplog):
    model = build(input_size=20).eval()
    calls = spy(model.encoder)
    out, _ = model.encode(torch.randn(1, 30, 20), torch.tensor([30]))
    assert calls[0][2]["times"] is None
    assert out.shape == (1, 10, 16)
    assert "0.01 s" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # ESPnet's train_dtype
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("autocast_frontend", [False, True])
def test_times_stay_in_double_precision_and_features_in_theirs_but_where_told(
    amp, autocast_frontend, dtype, build
):
    conf = {"ctc_weight": 1.0, "autocast_frontend": autocast_frontend}
    model, (speech, lengths) = build(model_conf=conf).to(dtype).train(), audio(*UNEVEN)
    calls = spy(model.encoder)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        out, _ = model.encode(speech.to(dtype), lengths)
    half = amp and autocast_frontend and dtype == torch.float32
    assert calls[0][0].dtype == (torch.bfloat16 if half else dtype)
    assert calls[0][2]["times"].dtype == torch.float64
    assert out.isfinite().all()
    assert amp or out.dtype == dtype


# --- normalisation and SpecAugment


def test_features_are_normalised_before_they_are_masked_and_in_training_alone(build):
    model = build(**SPECAUG).train()
    into_specaug, into_encoder = spy(model.specaug), spy(model.encoder)
    model.encode(*audio(*UNEVEN))
    features = into_specaug[0][0]
    assert features.mean(dim=1).abs().max() < 1e-4
    torch.testing.assert_close(
        features.var(dim=1, correction=0), torch.ones(4, 20), rtol=1e-3, atol=1e-3
    )
    masked = into_encoder[0][0]
    assert (masked == 0).any()
    assert torch.equal(masked[masked != 0], features[masked != 0])
    model.eval().encode(*audio(1.0))
    assert len(into_specaug) == 1


@pytest.mark.parametrize("norm_means", [False, True])
@pytest.mark.parametrize("norm_vars", [False, True])
def test_normalisation_is_espnets_for_one_utterance_and_the_same_beside_a_longer_one(
    norm_means, norm_vars
):
    torch.manual_seed(0)
    features, lengths = 3 * torch.randn(2, 100, 5) - 8, torch.tensor([100, 50])
    settings = UtteranceMVN(norm_means=norm_means, norm_vars=norm_vars)
    ours = normalize_utterances(features, lengths, settings)
    for index, length in enumerate(lengths.tolist()):
        alone = features[index : index + 1, :length].clone()
        expected, _ = settings(alone, lengths[index : index + 1])
        torch.testing.assert_close(ours[index, :length], expected[0])
        assert not ours[index, length:].any()


def test_a_channel_without_variance_has_a_finite_gradient():
    """As digital silence has, where a frontend is trained."""
    features = torch.zeros(1, 10, 3, requires_grad=True)
    settings = UtteranceMVN(norm_means=True, norm_vars=True)
    normalize_utterances(features, torch.tensor([10]), settings).sum().backward()
    assert features.grad.isfinite().all()


def test_a_replicas_share_is_cut_to_its_longest_utterance(build):
    model = build().eval()
    speech, lengths = audio(0.9, 0.5)
    expected, _ = model.encode(speech, lengths)
    padded = torch.nn.functional.pad(speech, (0, 4000))  # as beside a longer one in another share
    out, out_lengths = replica(model).encode(padded, lengths)
    assert out_lengths.tolist() == [31, 17]
    torch.testing.assert_close(out, expected)


def test_the_way_to_the_encoder_waits_for_no_gpu(monkeypatch, build):
    """On fake CUDA tensors, which have no values; only in training frames are counted."""
    monkeypatch.setattr("cape_plugins.checks.Tensor", FakeTensor)  # checked too
    model, seen = build().eval(), []

    class Sees(torch.nn.Module):
        def forward(self, *given, times):
            seen.extend([*given, times])
            return *given, None

    model.encoder = Sees()
    with FakeTensorMode():
        mel = model.frontend.logmel
        mel.melmat = torch.empty(mel.melmat.shape, device="cuda")
        lengths = torch.empty(3, dtype=torch.long, device="cuda")
        model.encode(torch.empty(3, 16000, device="cuda"), lengths)
    assert {tensor.device.type for tensor in seen} == {"cuda"}


# --- bad combinations and bad audio


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (encoder(frame_shift=0.02), "frame_shift: 0.01"),
        (espnets(hop_length=128), "frame_shift: 0.016"),
        (espnets(fs="16k"), "frame_shift: 0.005"),
        ({"specaug": "cape_specaug"}, "max_freq_mask_width"),
        ({"preencoder": "sinc"}, "preencoder"),
        ({"encoder": "rnn", "encoder_conf": {}}, "RNNEncoder"),
    ],
)
def test_what_does_not_fit_together_is_refused_when_the_model_is_built(settings, named, build):
    with pytest.raises(ValueError, match=named):
        build(**settings)


def test_model_conf_is_that_of_espnets_model_and_typos_are_refused(build):
    assert get_default_kwargs(CapeASRModel) == get_default_kwargs(ESPnetASRModel)
    with pytest.raises(TypeError, match="ctc_wait"):
        build(model_conf={"ctc_wait": 1.0})


@pytest.mark.parametrize(("settings", "least"), [({}, 101), (STOCK, 129)])
def test_audio_without_a_frame_is_what_espnets_decoding_calls_too_short(settings, least, build):
    model = build(**settings).eval()
    for samples in (0, 1, least - 1):
        with pytest.raises(TooShortUttError, match=f"{samples} samples"):
            model.encode(torch.zeros(1, samples), torch.tensor([samples]))
    assert model.encode(audio(1.0)[0][:, :least], torch.tensor([least]))[1].item() == 1
