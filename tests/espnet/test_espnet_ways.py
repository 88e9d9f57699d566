"""ESPnet's own ways with a model of ours: two processes, resuming, packing; the egs2 template.

The data come from integrations/espnet/prepare_wavs.py. One training serves all tests: an epoch by
two processes, then a second one by a single process that resumes it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")
soundfile = pytest.importorskip("soundfile")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "integrations" / "espnet" / "egs2_template"
RATE = 8000
PITCH = {"a": 300, "b": 900, "c": 2700}  # Hz
CONFIG = {
    "frontend": "cape_fbank",
    "frontend_conf": {"fs": "8k", "n_mels": 20},
    "specaug": "cape_specaug",
    "specaug_conf": {"max_freq_mask_width": 5},
    "normalize": "utterance_mvn",
    "normalize_conf": {"norm_means": True, "norm_vars": True},
    "model": "cape_asr",
    "model_conf": {"ctc_weight": 1.0},
    "encoder": "cape_transformer",
    "encoder_conf": {
        **{"output_size": 32, "linear_units": 64, "num_blocks": 3, "max_global_shift": 3.0},
        **{"layer_drop_rate": 0.3, "dropout_rate": 0.0, "conv_dropout_rate": 0.0},
    },
    "optim": "adamw",
    "optim_conf": {"lr": 3.0e-3},
    "iterator_type": "task",
    "batch_type": "length",
    "batch_bins": 8 * RATE,
    "num_iters_per_epoch": 30,
    "max_epoch": 1,
    "best_model_criterion": [["valid", "cer_ctc", "min"]],
    "token_type": "word",
    "ngpu": 0,
    "num_workers": 0,
    "log_interval": 10,
    "use_tensorboard": False,
    "use_matplotlib": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """WAV files of tones, made into ESPnet's files, and statistics."""
    folder = tmp_path_factory.mktemp("ways")
    random = np.random.default_rng(0)
    splits = []
    spec = spec_from_file_location("prepare_wavs", TEMPLATE.parent / "prepare_wavs.py")
    prepare_wavs = module_from_spec(spec)
    sys.modules["prepare_wavs"] = prepare_wavs  # dataclasses look there
    spec.loader.exec_module(prepare_wavs)
    for name, count in (("train", 60), ("valid", 8)):
        wavs = folder / "wavs" / name
        wavs.mkdir(parents=True)
        for index in range(count):
            words = random.choice(list(PITCH), size=random.integers(2, 5)).tolist()
            time = np.arange(RATE // 4) / RATE
            sound = [np.sin(2 * np.pi * PITCH[word] * time) * np.hanning(2000) for word in words]
            samples = np.concatenate(sound)
            samples = 0.5 * samples + 0.01 * random.standard_normal(len(samples))
            soundfile.write(wavs / f"{name}{index:02d}.wav", samples, RATE)
            (wavs / f"{name}{index:02d}.txt").write_text(" ".join(words))
        splits.append(prepare_wavs.Split(name, wavs))
    assert prepare_wavs.prepare(splits, folder / "data", token_type="word") == RATE
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    from espnet2.bin.asr_train import main

    main(cmd=flags(folder, stats=True))
    return folder


def flags(folder: Path, *more: object, stats: bool = False) -> list[str]:
    given = ["--config", folder / "config.yaml", "--token_list", folder / "data" / "tokens.txt"]
    for name in ("train", "valid"):
        for file, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            path = folder / "data" / name / file
            given += [f"--{name}_data_path_and_name_and_type", f"{path},{kind}"]
        if not stats:
            given += [f"--{name}_shape_file", folder / "stats" / name / "speech_shape"]
    if stats:
        given += ["--collect_stats", "true", "--batch_type", "unsorted", "--batch_size", 8]
    given += ["--output_dir", folder / ("stats" if stats else "exp"), *more]
    return list(map(str, given))


def environment() -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if "AUTOLOAD" not in k}, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def logs_of_two(folder) -> list[str]:
    """The logs of both processes of the first epoch."""
    together = ["--dist_backend", "gloo", "--dist_world_size", 2, "--dist_rank"]
    meeting = ["--dist_init_method", f"file://{folder / 'meeting'}"]
    command = [sys.executable, "-m", "espnet2.bin.asr_train"]
    paths = [folder / f"rank{rank}.log" for rank in range(2)]
    processes = []
    for rank, path in enumerate(paths):
        with path.open("w") as log:
            process = subprocess.Popen(
                [*command, *flags(folder, *together, rank, *meeting)],
                env=environment(), stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        processes.append(process)
    try:
        for process in processes:
            process.wait(timeout=300)
    finally:
        for process in processes:
            process.kill()
    logs = [path.read_text() for path in paths]
    assert [process.returncode for process in processes] == [0, 0], logs[0][-4000:]
    shutil.copy(folder / "exp" / "checkpoint.pth", folder / "after_one_epoch.pth")
    return logs


@pytest.fixture(scope="module")
def trained(folder, logs_of_two) -> Path:
    """The folder of the training, resumed for a second epoch."""
    from espnet2.bin.asr_train import main

    main(cmd=flags(folder, "--resume", "true", "--max_epoch", 2))
    return folder / "exp"


def test_collect_stats_writes_shapes_in_samples_and_features_at_the_nominal_hop(folder):
    for name in ("train", "valid"):
        stats = folder / "stats" / name
        scp = dict(line.split() for line in (folder / "data" / name / "wav.scp").open())
        shapes = dict(line.split() for line in (stats / "speech_shape").open())
        assert {key: soundfile.info(path).frames for key, path in scp.items()} == {
            key: int(shape) for key, shape in shapes.items()
        }
        found = np.load(stats / "feats_stats.npz")
        assert found["count"] == sum(int(shape) // 80 + 1 for shape in shapes.values())
        assert found["sum"].shape == (20,)


def test_two_processes_train_one_model_and_the_first_writes_it(folder, logs_of_two):
    assert ":0/2]" in logs_of_two[0]  # ESPnet's mark of rank 0 of 2
    assert "batches made anew in each pass over 60 utterances" in logs_of_two[0]
    assert "The training was finished at 1 epochs" in logs_of_two[0]
    saved = torch.load(folder / "after_one_epoch.pth", weights_only=False)
    assert not any(name.startswith("module.") for name in saved["model"])
    steps = {int(state["step"]) for state in saved["optimizers"][0]["state"].values()}
    assert steps == {30}  # of every parameter, although layers are dropped


def test_training_resumes_after_the_last_epoch(folder, trained):
    before = torch.load(folder / "after_one_epoch.pth", weights_only=False)
    after = torch.load(trained / "checkpoint.pth", weights_only=False)
    assert after["reporter"]["epoch"] == 2
    stats = after["reporter"]["stats"]
    first = before["reporter"]["stats"][1]
    assert stats[1]["train"]["time"] == first["train"]["time"]  # not trained again
    assert stats[1]["valid"]["loss"] == first["valid"]["loss"]
    steps = {int(state["step"]) for state in after["optimizers"][0]["state"].values()}
    assert steps == {60}  # the optimiser's state went on, too
    assert stats[2]["valid"]["loss"] < stats[1]["valid"]["loss"]


def test_a_packed_and_unpacked_model_is_the_same_and_recognises_the_same(trained, tmp_path):
    from espnet2.bin.asr_inference import Speech2Text
    from espnet2.bin.pack import main as pack
    from espnet2.main_funcs.pack_funcs import unpack

    model, config = trained / "2epoch.pth", trained / "config.yaml"
    archive = tmp_path / "model.zip"
    packed = ["--asr_train_config", config, "--asr_model_file", model, "--outpath", archive]
    pack(cmd=["asr", *map(str, packed)])
    files = unpack(archive, tmp_path / "unpacked")
    assert set(files) == {"asr_train_config", "asr_model_file"}
    original = Speech2Text(config, model, beam_size=1, ctc_weight=1.0)
    unpacked = Speech2Text(**files, beam_size=1, ctc_weight=1.0)
    states = [speech2text.asr_model.state_dict() for speech2text in (original, unpacked)]
    saved = torch.load(model, weights_only=True)
    assert list(states[0]) == list(states[1]) == list(saved)  # ESPnet forgives missing keys
    assert all(states[1][name].equal(value) for name, value in saved.items())
    data = trained.parent / "data" / "valid"
    for line in (data / "wav.scp").read_text().splitlines()[:3]:
        samples, _ = soundfile.read(line.split()[1], dtype="float32")
        (text, _, _, one), (again, _, _, two) = original(samples)[0], unpacked(samples)[0]
        assert text == again
        assert float(one.score) == float(two.score)


# --- egs2


def recipe_folder(tmp_path: Path, corpus: str) -> Path:
    """A recipe's folder as the template's README has it, with a recorder of asr.sh's arguments."""
    recipe = tmp_path / "egs2" / corpus / "asr1"
    (recipe / "conf" / "cape").mkdir(parents=True)
    (recipe / "local").mkdir()
    configs = ROOT / "configs" / "espnet"
    for path in (*(configs / corpus).glob("*.yaml"), *configs.glob("*.yaml")):
        shutil.copy(path, recipe / "conf" / "cape")
    shutil.copy(TEMPLATE / "run.sh", recipe / "run_cape.sh")
    shutil.copy(TEMPLATE / "local" / "score.sh", recipe / "local")
    (recipe / "asr.sh").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" > arguments\n')
    (recipe / "asr.sh").chmod(0o755)
    return recipe


@pytest.mark.parametrize("script", ["run.sh", "local/score.sh"])
def test_the_templates_scripts_are_bash(script):
    assert os.access(TEMPLATE / script, os.X_OK)
    subprocess.run(["bash", "-n", str(TEMPLATE / script)], check=True)


@pytest.mark.parametrize(
    ("corpus", "variant", "ngpu", "batch_bins", "accum_grad", "positions"),
    [
        ("wsj", "cape", 1, 3_840_000, 16, {"pos": "cape", "max_global_scale": 1.1}),
        ("tedlium3", "cape", 2, 7_680_000, 8, {"pos": "cape", "max_global_scale": 2.0}),
        ("tedlium3", "cape_padding_free", 4, 15_360_000, 4, {"max_global_scale": 1.0}),
        ("tedlium3", "seq2seq_relpos", 16, 12_800_000, 1, {"pos": "relpos"}),
    ],
)
def test_run_sh_gives_asr_sh_the_variant_and_the_papers_batch_on_any_number_of_gpus(
    tmp_path, corpus, variant, ngpu, batch_bins, accum_grad, positions
):
    from espnet2.tasks.asr import ASRTask

    recipe = recipe_folder(tmp_path, corpus)
    subprocess.run(
        ["./run_cape.sh", variant, "--stage", "10"],
        cwd=recipe, check=True,
        env={**os.environ, "ngpu": str(ngpu), "asr_args": "--seed 3", "python": sys.executable},
    )  # fmt: skip
    given = (recipe / "arguments").read_text().splitlines()
    assert given[-2:] == ["--stage", "10"]
    given = dict(zip(given[::2], given[1::2], strict=True))
    assert given["--ngpu"] == str(ngpu)
    assert given["--feats_normalize"] == "utterance_mvn"
    assert (recipe / given["--inference_config"]).is_file()
    # what asr.sh makes of it for asr_train
    config = ["--config", str(recipe / given["--asr_config"]), "--frontend_conf", "fs=16k"]
    config += ["--output_dir", "unused", "--token_list", "unused"]
    parsed = ASRTask.get_parser().parse_args([*config, *shlex.split(given["--asr_args"])])
    assert (parsed.batch_bins, parsed.accum_grad, parsed.seed) == (batch_bins, accum_grad, 3)
    assert positions.items() <= parsed.encoder_conf.items()
    assert (parsed.iterator_type == "task") == variant.endswith("padding_free")
    assert (parsed.decoder is not None) == variant.startswith("seq2seq")
    assert given["--asr_tag"] == f"train_asr_{variant}_raw_en_char_seed3"
    criterion = ".".join(parsed.best_model_criterion[0][:2])
    assert given["--inference_asr_model"] == f"{criterion}.best.pth"


def test_run_sh_says_what_it_cannot_do(tmp_path):
    recipe = recipe_folder(tmp_path, "wsj")
    for variant, more, says in (
        ("cappe", {}, "cappe is no variant of wsj/train_asr, these are: nopos, sinpos, abspos,"),
        ("seq2seq_relpos", {}, "relpos is no variant of wsj/train_asr_seq2seq, these are: none"),
        ("cape", {"ngpu": "3"}, "ngpu must divide 16, the paper's GPUs, got 3"),
        ("cape", {"corpus": "aishell"}, "knows egs2/wsj and egs2/tedlium3, not aishell"),
    ):
        done = subprocess.run(
            ["./run_cape.sh", variant], cwd=recipe,
            env={**os.environ, "python": sys.executable, **more},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2
        assert says in done.stderr
    assert not (recipe / "arguments").exists()


def test_score_sh_evaluates_what_asr_sh_has_decoded(trained, tmp_path):
    pytest.importorskip("cape_plugins.evaluation.espnet.evaluate")
    # asr.sh leaves exp/<inference>/<set>/text; its data are in dump/raw
    decoded = trained / "decode_asr_ctc_asr_model_valid.cer_ctc.best" / "valid"
    decoded.mkdir(parents=True)
    (decoded / "text").write_text("")
    score = TEMPLATE / "local" / "score.sh"
    options = ["--dumpdir", trained.parent / "data", "--bins", "0.8", "--python", sys.executable]
    done = subprocess.run(
        [*map(str, (score, *options, trained))],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = (trained / "cape_eval.csv").read_text().splitlines()
    assert any(re.search(r"\bvalid\b.*\ball\b", line) for line in lines)
    assert len(lines) == 1 + 3  # all, shorter and longer than 0.8 s
