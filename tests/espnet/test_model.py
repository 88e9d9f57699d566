"""The model ``cape_asr``: timestamps to the encoder, features as in the paper, no padding."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("espnet2")

import numpy as np
import soundfile
import yaml
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.layers.utterance_mvn import UtteranceMVN
from espnet2.tasks.asr import ASRTask

from cape_plugins.espnet.model import CapeASRModel, normalize_utterances

RATE = 8000
KEYS = {"one": (697, 1209), "five": (770, 1336), "nine": (852, 1477)}  # Hz, the tones of a key
TOKENS = ["<blank>", "<unk>", *KEYS, "<sos/eos>"]
SIZES = ["output_size=32", "attention_heads=4", "linear_units=64", "num_blocks=2"]
OURS = ["--frontend", "cape_fbank", "--frontend_conf", "fs=8k", "--frontend_conf", "n_mels=20"]
ESPNETS = ["--frontend_conf", "fs=8k", "--frontend_conf", "n_fft=256", "--frontend_conf"]
ESPNETS = [*ESPNETS, "hop_length=80", "--frontend_conf", "n_mels=20"]
SPECAUG = ["--specaug", "cape_specaug", "--specaug_conf", "max_freq_mask_width=6"]


def dial(words: list[str], seconds: float, seed: int = 0) -> torch.Tensor:
    """Telephone keys in noise, ``seconds`` in all."""
    generator = torch.Generator().manual_seed(seed)
    each = round(seconds * RATE) // len(words)
    time = torch.arange(each) / RATE
    tones = [sum(torch.sin(2 * math.pi * f * time) for f in KEYS[word]) for word in words]
    speech = 0.3 * torch.cat([tone * torch.hann_window(each) for tone in tones])
    return speech + 0.02 * torch.randn(len(speech), generator=generator)


def batch(*seconds: float) -> tuple[torch.Tensor, torch.Tensor]:
    speech = [dial(list(KEYS), duration, seed) for seed, duration in enumerate(seconds)]
    lengths = torch.tensor([len(samples) for samples in speech])
    return torch.nn.utils.rnn.pad_sequence(speech, batch_first=True), lengths


UNEVEN = (1.2, 0.9, 1.05, 1.1)  # seconds


def build(*more: str, frontend: list[str] = OURS, encoder: str = "cape_transformer"):
    flags = ["--model", "cape_asr", "--encoder", encoder, "--output_dir", "unused"]
    flags += ["--model_conf", "ctc_weight=1.0", "--normalize", "utterance_mvn"]
    flags += ["--normalize_conf", "norm_vars=true", "--token_list", "unused", *frontend]
    for size in SIZES:
        flags += ["--encoder_conf", size]
    args = ASRTask.get_parser().parse_args([*flags, *more])
    args.token_list = TOKENS
    torch.manual_seed(0)
    return ASRTask.build_model(args)


def spy(module: torch.nn.Module) -> list:
    """Collects what the module is called with: (features, lengths, keywords)."""
    calls: list = []

    def note(module, arguments, keywords):
        calls.append((arguments[0].detach().clone(), arguments[1], keywords))

    module.register_forward_pre_hook(note, with_kwargs=True)
    return calls


# --- timestamps and padding


def test_in_training_nothing_is_padded_and_the_encoder_knows_the_times():
    model = build().train()
    calls = spy(model.encoder)
    speech, lengths = batch(*UNEVEN)
    out, out_lengths = model.encode(speech, lengths)
    features, frames, keywords = calls[0]
    times = keywords["times"]
    assert set(frames.tolist()) == {features.shape[1]} == {times.shape[1]}
    assert features.shape[1] == pytest.approx(100 * sum(UNEVEN) / 4, abs=2)
    assert set(out_lengths.tolist()) == {out.shape[1]}
    assert (times.diff(dim=1) > 0).all()
    ends = times[:, -1]
    assert (ends - torch.tensor(UNEVEN)).abs().max() < 0.05  # each lasts as long as it did


def test_in_training_no_mask_is_needed_where_with_padding_one_is(monkeypatch):
    model = build()
    speech, lengths = batch(*UNEVEN)
    attention = F.scaled_dot_product_attention

    def unmasked(*arguments, attn_mask=None, **keywords):
        return attention(*arguments, **keywords)

    def outputs(training: bool) -> list[torch.Tensor]:
        """Of the encoder in evaluation, with and without its attention mask."""
        features, frames, times = model.train(training).extract_with_times(speech, lengths)
        features = normalize_utterances(features, frames, model.normalize)
        model.encoder.eval()
        masked, _, _ = model.encoder(features, frames, times=times)
        with monkeypatch.context() as patch:
            patch.setattr(F, "scaled_dot_product_attention", unmasked)
            return [masked, model.encoder(features, frames, times=times)[0]]

    torch.testing.assert_close(*outputs(training=True))
    padded = outputs(training=False)
    assert (padded[0] - padded[1])[1].abs().max() > 1e-3


def test_in_evaluation_a_padded_utterance_gives_what_it_gives_alone():
    model = build().eval()
    speech, lengths = batch(1.2, 0.5, 0.8)
    out, out_lengths = model.encode(speech, lengths)
    assert out_lengths.tolist() == [41, 17, 27]  # ⌈101 · seconds / 3⌉ at the nominal hop
    for index, length in enumerate(lengths.tolist()):
        alone, _ = model.encode(speech[index : index + 1, :length], lengths[index : index + 1])
        torch.testing.assert_close(out[index, : out_lengths[index]], alone[0], rtol=1e-4, atol=1e-4)


def test_training_reaches_every_parameter():
    model = build(*SPECAUG, "--encoder_conf", "layer_drop_rate=0.0").train()
    speech, lengths = batch(*UNEVEN)
    text = torch.tensor([[2, 3, 4]] * 4)
    loss, _, weight = model(speech, lengths, text, torch.tensor([3] * 4))
    loss.backward()
    assert loss.isfinite()
    assert weight == 4
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_collect_stats_takes_the_nominal_hop_although_the_model_is_in_training():
    model = build().train()
    speech, lengths = batch(*UNEVEN)
    with torch.no_grad():
        feats = model.collect_feats(speech, lengths, torch.zeros(4, 1), torch.ones(4))
    assert feats["feats_lengths"].tolist() == [100 * int(n) // RATE + 1 for n in lengths]


@pytest.mark.parametrize("training", [False, True])
def test_with_espnets_frontend_the_times_come_from_its_hop(training):
    model = build(frontend=ESPNETS).train(training)
    calls = spy(model.encoder)
    model.encode(*batch(1.2, 0.6))
    times = calls[0][2]["times"]
    torch.testing.assert_close(times[0], torch.arange(121).double() * 0.01)
    torch.testing.assert_close(times[1, :61], torch.arange(61).double() * 0.01)
    assert times[1, 61:].isnan().all()


def test_uncentred_frames_lie_half_a_window_later():
    model = build("--frontend_conf", "center=false", frontend=ESPNETS).eval()
    calls = spy(model.encoder)
    model.encode(*batch(1.2))
    expected = torch.arange(117).double() * 0.01 + 128 / RATE
    torch.testing.assert_close(calls[0][2]["times"][0], expected)


def test_features_from_the_data_loader_have_the_encoders_frame_shift():
    model = build("--input_size", "20", frontend=[]).eval()
    calls = spy(model.encoder)
    out, _ = model.encode(torch.randn(1, 30, 20), torch.tensor([30]))
    assert calls[0][2]["times"] is None
    assert out.shape == (1, 10, 32)


def test_under_amp_features_stay_in_single_precision_and_times_in_double():
    model = build().train()
    calls = spy(model.encoder)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = model.encode(*batch(*UNEVEN))
    assert calls[0][0].dtype == torch.float32
    assert calls[0][2]["times"].dtype == torch.float64
    assert out.isfinite().all()


def test_train_dtype_float64_is_kept():
    model = build().double().train()
    calls = spy(model.encoder)
    speech, lengths = batch(*UNEVEN)
    out, _ = model.encode(speech.double(), lengths)
    assert calls[0][0].dtype == out.dtype == torch.float64


# --- normalisation and SpecAugment


def test_features_are_normalised_before_they_are_masked():
    model = build(*SPECAUG).train()
    into_specaug, into_encoder = spy(model.specaug), spy(model.encoder)
    model.encode(*batch(*UNEVEN))
    features = into_specaug[0][0]
    assert features.mean(dim=1).abs().max() < 1e-4
    torch.testing.assert_close(
        features.var(dim=1, correction=0), torch.ones(4, 20), rtol=1e-3, atol=1e-3
    )
    masked = into_encoder[0][0]
    assert (masked == 0).any()
    assert torch.equal(masked[masked != 0], features[masked != 0])


def test_evaluation_masks_nothing():
    model = build(*SPECAUG).eval()
    calls = spy(model.specaug)
    model.encode(*batch(1.0))
    assert calls == []


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


def test_global_statistics_may_normalise_instead(tmp_path):
    stats = tmp_path / "feats_stats.npz"  # mean 1, variance 4
    np.savez(stats, count=10, sum=np.full(20, 10.0), sum_square=np.full(20, 50.0))
    more = ["--normalize", "global_mvn", "--normalize_conf", f"stats_file={stats}"]
    model = build(*more, "--normalize_conf", "norm_vars=true").eval()
    calls = spy(model.encoder)
    speech, lengths = batch(1.0)
    model.encode(speech, lengths)
    torch.testing.assert_close(calls[0][0], (model.frontend(speech, lengths)[0] - 1) / 2)


# --- bad combinations


@pytest.mark.parametrize(
    ("more", "frontend", "says"),
    [
        (["--encoder_conf", "frame_shift=0.02"], OURS, "set frame_shift: 0.01, or"),
        (["--frontend_conf", "hop_length=128"], ESPNETS, "set frame_shift: 0.016, or"),
        (["--frontend_conf", "fs=16k"], ESPNETS, "set frame_shift: 0.005, or"),
        (["--preencoder", "sinc"], OURS, "a preencoder that keeps the frames"),
        (["--specaug", "cape_specaug"], OURS, "max_freq_mask_width=30 exceeds the 20"),
    ],
)
def test_what_does_not_fit_together_is_refused_when_the_model_is_built(more, frontend, says):
    with pytest.raises(ValueError, match=says):
        build(*more, frontend=frontend)


def test_an_encoder_that_takes_no_times_is_refused():
    args = ["--model", "cape_asr", "--encoder", "rnn", "--output_dir", "x", "--token_list", "x"]
    args = ASRTask.get_parser().parse_args([*args, "--model_conf", "ctc_weight=1.0", *OURS])
    args.token_list = TOKENS
    with pytest.raises(ValueError, match="RNNEncoder takes none: choose encoder: cape_transformer"):
        ASRTask.build_model(args)


def test_model_conf_is_that_of_espnets_model_and_typos_are_refused():
    from espnet2.utils.get_default_kwargs import get_default_kwargs

    assert get_default_kwargs(CapeASRModel) == get_default_kwargs(ESPnetASRModel)
    with pytest.raises(TypeError, match="ctc_wait"):
        build("--model_conf", "ctc_wait=1.0")


# --- the whole way, in ESPnet's own commands


def test_asr_train_without_padding_then_recognition_with_the_same_weights(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 12), ("valid", 3)):
        scp, text, shape = "", "", ""
        for index in range(count):
            picks = torch.randint(3, (2 + index % 3,), generator=generator)
            words = [list(KEYS)[pick] for pick in picks]
            samples = dial(words, 0.3 * len(words) + 0.02 * index, index)
            path = tmp_path / f"{name}{index}.wav"
            soundfile.write(path, samples.numpy(), RATE)
            scp += f"{name}{index} {path}\n"
            text += f"{name}{index} {' '.join(words)}\n"
            shape += f"{name}{index} {len(samples)}\n"
        (tmp_path / f"{name}.scp").write_text(scp)
        (tmp_path / f"{name}.text").write_text(text)
        (tmp_path / f"{name}.speech_shape").write_text(shape)
    (tmp_path / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    config = {
        "frontend": "cape_fbank",
        "frontend_conf": {"fs": "8k", "n_mels": 20},
        "specaug": "cape_specaug",
        "specaug_conf": {"max_freq_mask_width": 6},
        "normalize_conf": {"norm_means": True, "norm_vars": True},
        "model": "cape_asr",
        "model_conf": {"ctc_weight": 1.0},
        "encoder": "cape_transformer",
        "encoder_conf": {"output_size": 32, "linear_units": 64, "num_blocks": 2},
        "iterator_type": "task",
        "batch_type": "length",
        "batch_bins": 4 * RATE,
        "valid_batch_type": "unsorted",
        "valid_batch_size": 2,
        "optim": "adagrad",
        "optim_conf": {"lr": 0.01},
        "max_epoch": 2,
        "best_model_criterion": [["valid", "loss", "min"]],
        "num_workers": 0,
        "use_tensorboard": False,
        "use_matplotlib": False,
        "log_interval": 1,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    flags = ["--config", "config.yaml", "--output_dir", "exp", "--ngpu", "0"]
    flags += ["--token_type", "word", "--token_list", "tokens.txt"]
    for name in ("train", "valid"):
        for file, kind in ((f"{name}.scp", "speech,sound"), (f"{name}.text", "text,text")):
            flags += [f"--{name}_data_path_and_name_and_type", f"{file},{kind}"]
        flags += [f"--{name}_shape_file", f"{name}.speech_shape"]
    environment = {k: v for k, v in os.environ.items() if "AUTOLOAD" not in k}
    trained = subprocess.run(
        [sys.executable, "-m", "espnet2.bin.asr_train", *flags],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert trained.returncode == 0, trained.stderr[-4000:]
    assert "batches made anew in each pass over 12 utterances" in trained.stderr
    written = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text())
    chosen = {name: written[name] for name in ("frontend", "specaug", "model", "iterator_type")}
    assert chosen == {name: config[name] for name in chosen}

    recognise(tmp_path / "exp", tmp_path / "valid0.wav")


def recognise(trained: Path, wav: Path) -> None:
    """Speech2Text, the class inside asr_inference, takes the checkpoint whole and recognises."""
    from espnet2.bin.asr_inference import Speech2Text

    speech2text = Speech2Text(
        trained / "config.yaml", trained / "2epoch.pth", beam_size=1, ctc_weight=1.0
    )
    model = speech2text.asr_model
    assert type(model) is CapeASRModel
    saved = torch.load(trained / "2epoch.pth", weights_only=True)
    assert list(saved) == list(model.state_dict())
    assert all(saved[name].equal(value) for name, value in model.state_dict().items())
    samples, _ = soundfile.read(wav, dtype="float32")
    text, tokens, _, _ = speech2text(samples)[0]
    assert set(tokens) <= set(KEYS)
    assert text.split() == tokens
    silence = torch.zeros(50)
    with pytest.raises(ValueError, match="too short: 50 samples, and features need 101"):
        speech2text(silence)
