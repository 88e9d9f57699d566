"""Audio that is not what the config says stops ESPnet's commands; messages name the utterance."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espnet2")

import soundfile

from espnet_support import RATE, STOCK

FRONTENDS = {"cape_fbank": {}, "default": STOCK}
ONE_BATCH = {"batch_size": 12}
FASTER = "utterance train5 in .*fast.scp has 16000 Hz, the frontend expects 8000 Hz: set "
FAULTS = [
    ("nan", "cape_fbank", "utterance train5 has samples that are NaN or infinite"),
    ("fast", "cape_fbank", FASTER + "frontend_conf fs: 16000"),
    ("stereo", "cape_fbank", "utterance train5 has 2 channels, and frontend: cape_fbank"),
    ("empty", "cape_fbank", "utterance train5 has 0 samples, and features need 101"),
    ("short", "cape_fbank", "utterance train5 has 100 samples, and features need 101"),
    ("nan", "default", "utterance train5 has samples that are NaN or infinite"),
    ("fast", "default", FASTER + "frontend_conf fs: 16000"),
    ("empty", "default", "utterance train5 has 0 samples, and features need 1"),
    ("stereo", "default", "utterance train5 has 2 channels, others of its batch 1"),
]


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory) -> Path:
    """Lists of the corpus, each with a fault in the sixth utterance, which is in its name."""
    folder = tmp_path_factory.mktemp("audio")
    for name in ("text", "speech_shape"):
        (folder / name).write_text((corpus / "train" / name).read_text())
    lines = (corpus / "train" / "wav.scp").read_text().splitlines()
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * RATE)
    for fault, samples, rate in (
        ("nan", np.where(np.arange(RATE) == 500, math.nan, noise[:RATE]), RATE),
        ("fast", noise, 2 * RATE),
        ("stereo", noise.reshape(-1, 2), RATE),
        ("empty", noise[:0], RATE),
        ("short", noise[:100], RATE),
        ("long", np.tile(noise, 2), RATE),
    ):
        subtype = "FLOAT" if fault == "nan" else "PCM_16"
        soundfile.write(folder / f"{fault}.wav", samples, rate, subtype=subtype)
        faulty = [*lines[:5], f"train5 {folder}/{fault}.wav", *lines[6:]]
        (folder / f"{fault}.scp").write_text("\n".join(faulty))
    stereo = [f"train{index} {folder}/stereo.wav" for index in range(12)]
    (folder / "stereos.scp").write_text("\n".join(stereo))
    piped = [line.replace(" ", " cat ") + " |" for line in lines]
    piped[5] = f"train5 cat {folder}/fast.wav |"
    (folder / "pipes.ark").write_text("\n".join(piped))
    return folder


@pytest.mark.parametrize(("fault", "kind", "says"), FAULTS)
@pytest.mark.parametrize("command", ["train", "stats"])
def test_a_fault_of_one_file_stops_training_and_statistics_by_name(
    fault, kind, says, command, folder, asr_train, tmp_path, caplog
):
    flags = ("--collect_stats", "true") if command == "stats" else ()
    error: type[Exception] = ValueError
    if (fault, command) == ("fast", "train"):
        error, says = RuntimeError, "Sampling rates are mismatched"  # ESPnet's, which logs the name
    with pytest.raises(error, match=says):
        asr_train(tmp_path, *flags, train=folder / f"{fault}.scp", **FRONTENDS[kind], **ONE_BATCH)
    assert error is ValueError or "id=train5" in caplog.text


@pytest.mark.parametrize(("kind", "workers"), [("cape_fbank", 0), ("default", 1)])
def test_another_sampling_rate_of_all_files_stops_the_first_batch(
    kind, workers, asr_train, tmp_path
):
    conf = {"n_mels": 16, "hop_length": 160}  # fs: 16000
    says = r"utterance train\d+ in .*wav.scp has 8000 Hz, the frontend expects 16000 Hz: set "
    with pytest.raises(ValueError, match=says + "frontend_conf fs: 8000"):
        asr_train(tmp_path, frontend=kind, frontend_conf=conf, num_workers=workers)


def test_files_behind_pipes_are_read_for_their_rate(folder, asr_train, tmp_path):
    with pytest.raises(ValueError, match=r"train5 in .*pipes.ark has 16000 Hz"):
        asr_train(tmp_path, "--collect_stats", "true", train=folder / "pipes.ark", **ONE_BATCH)


def test_channels_of_which_espnets_frontend_takes_one_are_warned_of_once(
    folder, asr_train, tmp_path, caplog
):
    asr_train(tmp_path, train=folder / "stereos.scp", **STOCK)
    (message,) = [each for each in caplog.messages if "channels" in each]
    assert "has 2 channels: frontend: default takes one at random in training" in message


def test_several_rates_are_read_where_espnet_is_told_to_allow_them(folder, asr_train, tmp_path):
    flags = ("--collect_stats", "true", "--allow_multi_rates", "true")
    asr_train(tmp_path, *flags, train=folder / "fast.scp", **STOCK)
    assert "train5 16000" in (tmp_path / "train" / "speech_shape").read_text()


def test_durations_that_do_not_fit_into_a_batch_are_named(folder, asr_train, tmp_path):
    says = r"train5 has 32000 samples, its batch \d+ on average: .*, iterator_type: task"
    with pytest.raises(ValueError, match=says):
        asr_train(tmp_path, train=folder / "long.scp", **ONE_BATCH)
    # at the nominal hop they do
    asr_train(tmp_path, "--collect_stats", "true", train=folder / "long.scp", **ONE_BATCH)


def test_espnets_own_model_is_left_alone(folder, asr_train, tmp_path):
    conf = {"model": "espnet", "frontend": "default", "frontend_conf": {"n_mels": 16}}
    asr_train(tmp_path, train=folder / "nan.scp", **conf)


@pytest.mark.parametrize(("fault", "kind", "says"), FAULTS[:3])
def test_a_fault_of_one_file_stops_the_recognition_by_name(
    fault, kind, says, folder, trained, recognise, tmp_path
):
    with pytest.raises(ValueError, match=says):
        recognise(trained, folder / f"{fault}.scp", tmp_path)


@pytest.mark.parametrize("fault", ["empty", "short"])
def test_audio_without_a_frame_is_recognised_as_nothing(
    fault, folder, trained, recognise, tmp_path
):
    found = recognise(trained, folder / f"{fault}.scp", tmp_path)
    assert list(found) == [f"train{index}" for index in range(12)]
    assert found["train5"] == ""
