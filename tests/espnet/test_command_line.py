"""Our encoders in ESPnet's own commands: what a user of a recipe sees.

That the commands find the plug-in by name in processes of their own is in tests/test_autoload.py.
"""

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from espnet2.bin.asr_inference import Speech2Text, TooShortUttError
from espnet2.main_funcs.pack_funcs import unpack
from espnet2.tasks import asr

import cape_plugins.espnet as ours
from cape_plugins.espnet.transformer import SpeechTransformerEncoder
from cape_plugins.variants import names
from cape_support import environment
from espnet_support import BRANCHES, CONFORMER, RATE, SIZES, STOCK, make

ESPNETS = {**STOCK, "model": "espnet"}
WITHOUT_PADDING = {"iterator_type": "task", "batch_type": "length", "batch_bins": 4 * RATE}
WITHOUT_PADDING |= {"valid_batch_type": "unsorted", "valid_batch_size": 2}
TRAININGS = [
    *(("cape_transformer", pos, {"linear_units": 32}, ESPNETS) for pos in ("alibi", "random")),
    ("cape_e_branchformer", "cape", BRANCHES, WITHOUT_PADDING),
    ("cape_branchformer", "relpos", BRANCHES, ESPNETS),
    ("cape_conformer", "espnet_rel_pos", CONFORMER, WITHOUT_PADDING),
]


def test_importing_espnets_task_is_enough_and_registering_again_changes_nothing():
    assert asr.encoder_choices.classes["cape_transformer"] is SpeechTransformerEncoder
    before = dict(asr.encoder_choices.classes), dict(vars(asr.ASRTask))
    ours.register()
    assert (dict(asr.encoder_choices.classes), dict(vars(asr.ASRTask))) == before


def test_espnets_task_keeps_its_methods_but_for_two():
    methods = {name: getattr(each, "__func__", None) for name, each in vars(asr.ASRTask).items()}
    ours_are = {n for n, each in methods.items() if "cape" in getattr(each, "__module__", "")}
    assert ours_are == {"build_task_iter_factory", "main_worker"}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--encoder_conf", "pos=bogus"], f"encoder_conf pos: 'bogus'.*{', '.join(names(1))}"),
        (["--encoder_conf", "frame_shift=0.02"], "encoder_conf frame_shift"),
        (["--frontend_conf", "hop_unit=nope"], "hop_unit"),
    ],
)
def test_a_bad_value_fails_before_any_data_is_read(flags, named, asr_train, tmp_path):
    with pytest.raises(ValueError, match=named):
        asr_train(tmp_path, *flags, train=Path("/no/such/wav.scp"))


# --- from WAV files to recognised words


def test_collect_stats_writes_shapes_in_samples_and_features_at_the_nominal_hop(
    asr_train, corpus, tmp_path
):
    asr_train(tmp_path, "--collect_stats", "true")
    for name in ("train", "valid"):
        found = (tmp_path / name / "speech_shape").read_text()
        assert found == (corpus / name / "speech_shape").read_text()
        stats = np.load(tmp_path / name / "feats_stats.npz")
        assert stats["count"] == sum(int(n) // 80 + 1 for n in found.split()[1::2])
        assert stats["sum"].shape == (20,)


@pytest.mark.parametrize(
    ("encoder", "pos", "conf", "batches"),
    [pytest.param(*row, id=f"{row[0]}-{row[1]}-{row[3].get('model', '')}") for row in TRAININGS],
)
def test_each_variant_trains_and_recognises(
    encoder, pos, conf, batches, asr_train, recognise, corpus, tmp_path
):
    conf = {**SIZES, **conf, "pos": pos}
    asr_train(tmp_path / "exp", encoder=encoder, encoder_conf=conf, **batches)
    written = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text())
    assert (written["encoder"], written["encoder_conf"]["pos"]) == (encoder, pos)
    assert written["model"] == batches.get("model", "cape_asr")
    weights = torch.load(tmp_path / "exp" / "1epoch.pth", weights_only=True)
    assert all(value.isfinite().all() for value in weights.values())
    found = recognise(tmp_path / "exp", corpus / "valid" / "wav.scp", tmp_path / "decode")
    assert list(found) == [f"valid{index}" for index in range(4)]


def test_training_resumes_after_the_last_epoch(trained, asr_train, tmp_path):
    before = torch.load(trained / "checkpoint.pth", weights_only=False)
    exp = shutil.copytree(trained, tmp_path / "exp")
    batches = ("iterator_type", "batch_type", "batch_bins", "num_iters_per_epoch")
    config = yaml.safe_load((exp / "config.yaml").read_text())
    same = {name: config[name] for name in (*batches, "encoder_conf", "optim_conf")}
    asr_train(exp, "--resume", "true", "--max_epoch", 2, **same)
    after = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert after["reporter"]["epoch"] == 2
    stats, first = after["reporter"]["stats"], before["reporter"]["stats"][1]
    assert stats[1]["train"]["time"] == first["train"]["time"]  # not trained again
    assert stats[1]["valid"]["loss"] == first["valid"]["loss"]
    for saved, steps in ((before, 20), (after, 40)):  # the optimiser's state went on, too
        moments = saved["optimizers"][0]["state"].values()
        assert {int(state["step"]) for state in moments} == {steps}
    assert stats[2]["valid"]["loss"] < stats[1]["valid"]["loss"]


@pytest.mark.release
def test_two_processes_train_one_model_and_the_first_writes_it(data, written, tmp_path):
    command = [sys.executable, "-m", "espnet2.bin.asr_train", *written(**WITHOUT_PADDING), *data()]
    command += ["--dist_backend", "gloo", "--dist_world_size", "2", "--num_iters_per_epoch", "5"]
    command += ["--dist_init_method", f"file://{tmp_path}/meeting", "--output_dir", f"{tmp_path}"]
    command += ["--encoder_conf", "layer_drop_rate=0.3", "--dist_rank"]
    spawn = functools.partial(subprocess.Popen, env=environment(), stderr=-1, text=True)
    pair = [spawn([*command, rank]) for rank in "01"]
    logs = [process.communicate(timeout=300)[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], logs[0][-4000:]
    assert ":0/2]" in logs[0]  # ESPnet's mark of rank 0 of 2
    assert "batches made anew in each pass over 12 utterances" in logs[0]
    saved = torch.load(tmp_path / "checkpoint.pth", weights_only=False)
    assert not any(name.startswith("module.") for name in saved["model"])
    steps = {int(state["step"]) for state in saved["optimizers"][0]["state"].values()}
    assert steps == {5}  # of every parameter, although layers are dropped


def test_a_packed_and_unpacked_model_is_the_same_and_recognises_the_same(
    trained, run, corpus, tmp_path
):
    model, config = trained / "1epoch.pth", trained / "config.yaml"
    archive = tmp_path / "model.zip"
    packed = ["--asr_train_config", config, "--asr_model_file", model, "--outpath", archive]
    run("pack", "asr", *packed)
    files = unpack(archive, tmp_path / "unpacked")
    original = Speech2Text(config, model, beam_size=1, ctc_weight=1.0)
    unpacked = Speech2Text(**files, beam_size=1, ctc_weight=1.0)
    states = [speech2text.asr_model.state_dict() for speech2text in (original, unpacked)]
    saved = torch.load(model, weights_only=True)
    assert list(states[0]) == list(states[1]) == list(saved)  # ESPnet forgives missing keys
    assert all(states[1][name].equal(value) for name, value in saved.items())
    for index in range(3):
        samples, _ = soundfile.read(corpus / "valid" / f"{index}.wav", dtype="float32")
        (text, _, _, one), (again, _, _, two) = original(samples)[0], unpacked(samples)[0]
        assert (text, float(one.score)) == (again, float(two.score))
    with pytest.raises(TooShortUttError, match="50 samples"):
        original(torch.zeros(50))


# --- a checkpoint knows its variant: another ``pos`` does not take its weights

ANOTHER = "encoder_conf pos sinpos.* cape"


@pytest.mark.parametrize(
    ("option", "value", "other"),
    [("frame_shift", 0.01, 0.02), ("content_scale", "sqrt", 1), ("frequency_scale", 30, 1)],
)
@pytest.mark.parametrize(
    ("name", "pos"), [("cape_transformer", "cape"), ("cape_conformer", "sinpos")]
)
def test_what_changes_results_in_evaluation_is_refused_by_name(name, pos, option, value, other):
    state = make(name, pos, **{option: value}).state_dict()
    make(name, pos, **{option: value}).load_state_dict(state)
    with pytest.raises(ValueError, match=f"encoder_conf {option} "):
        make(name, pos, **{option: other}).load_state_dict(state)


def test_to_resume_or_initialise_or_recognise_with_another_pos_is_refused(
    trained, asr_train, recognise, corpus, tmp_path
):
    exp = shutil.copytree(trained, tmp_path / "exp")
    with pytest.raises(ValueError, match=ANOTHER):
        asr_train(exp, "--resume", "true", "--max_epoch", 2)
    init = ["--init_param", trained / "1epoch.pth"]
    with pytest.raises(ValueError, match=ANOTHER):
        asr_train(tmp_path, *init)
    asr_train(tmp_path, init[0], f"{init[1]}:::encoder.positions.mark")
    (tmp_path / "1epoch.pth").write_bytes((trained / "1epoch.pth").read_bytes())
    with pytest.raises(ValueError, match=ANOTHER):
        recognise(tmp_path, corpus / "valid" / "wav.scp", tmp_path / "decode")
