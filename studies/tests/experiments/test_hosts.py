"""The hosts' commands, as cape-run types them."""

import importlib.util
import os
from pathlib import Path

import pytest
from cape_studies.experiments import hosts, study
from cape_studies.experiments.hosts import Machine
from cape_studies.experiments.plan import Run, prepare, script_mark

ALONE, FOUR = (Machine(gpus, Path("/scripts")) for gpus in (0, 4))


def runs(name, tmp_path, machine=ALONE):
    """All runs of a study of the checkout, its data not there."""
    (one,) = study.load(study.find(name))
    setting, steps = prepare(one, tmp_path, machine, dict.fromkeys(one.needs), tmp_path / name)
    return steps, [Run(setting, variant, 5) for variant in one.variants]


def has(command, *expected):
    """Whether words stand one after the other in a command."""
    expected = [str(word) for word in expected]
    return any(command[i : i + len(expected)] == expected for i in range(len(command)))


def test_options_are_typed_as_argparse_and_as_espnet_read_them():
    options = {"a": 1, "b": True, "c": [1, "x"], "d": {"k": 2, "l": True}, "e": None, "f": False}
    plain = "--a 1 --b --c 1 x --d k=2 l=True"
    assert hosts.words(options) == plain.split()
    espnet = "--a 1 --b true --c 1 --c x --d k=2 --d l=true --f false"
    assert hosts.words(options, espnet=True) == espnet.split()
    assert hosts.words({"bins": []}) == ["--bins"]


def test_timm_is_trained_by_train_py_and_tested_by_our_evaluation(tmp_path):
    (step,), (first, *_) = runs("cifar10", tmp_path)
    command = first.train_command
    assert command[1] == "/scripts/train.py"
    assert has(command, "--data-dir", step.path)
    assert has(command, "--model-kwargs", "patch_size=4", "img_size=32", "embed_dim=64")
    assert has(command, "--seed", 5)
    assert has(command, "--output", first.folder, "--experiment", "train")
    assert has(command, "--device", "cpu")
    assert "--resume" not in command
    tested = first.evaluation_command("sizes")
    assert tested[1:3] == ["-m", "cape_studies.evaluate.timm"]
    assert has(tested, "--checkpoint", first.folder / "train" / "last.pth.tar")
    assert has(tested, "--resolutions", 24, 28, 32)


def test_timm_goes_on_from_the_last_checkpoint_that_there_is(tmp_path):
    _, (first, *_) = runs("cifar10", tmp_path)
    last = first.folder / "train" / "last.pth.tar"
    last.parent.mkdir(parents=True)
    last.touch()
    assert has(first.train_command, "--resume", last)


def test_train_py_takes_every_command_of_the_study(tmp_path):
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS does not name a folder with timm's train.py")
    pytest.importorskip("timm")
    spec = importlib.util.spec_from_file_location("timm_train", Path(scripts) / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    for name in ("cifar10", "cifar10_mixed"):
        for run in runs(name, tmp_path, Machine(timm_scripts=Path(scripts)))[1]:
            parsed = train.parser.parse_args(run.train_command[4:])  # behind --config FILE
            assert parsed.model == run.options["model"]
            assert parsed.model_kwargs == run.options["model-kwargs"]
            assert (parsed.train_img_sizes is None) == (name == "cifar10")


def test_timms_train_py_is_part_of_a_trainings_key(tmp_path):
    keys = []
    for text in ("x = 1\n", "x = 2\n"):
        (tmp_path / "train.py").write_text(text)
        script_mark.cache_clear()
        keys.append(runs("cifar10", tmp_path, Machine(timm_scripts=tmp_path))[1][0].key)
    assert keys[0] != keys[1]


def test_fairseq_is_trained_by_hydra_with_a_recipe_and_by_fairseq_train_without(tmp_path):
    (corpus, stacked), (first, *_) = runs("multi30k", tmp_path)
    command = first.train_command
    assert Path(command[0]).name == "fairseq-hydra-train"
    assert has(command, "--config-name", "multi30k", f"++task.data={corpus.path}/data-bin")
    assert {"++model.pos=cape", "++common.seed=5", "++common.cpu=true"} < set(command)
    assert f"hydra.run.dir={first.folder}/train" in command
    assert has(stacked.command(), "stack", "--source", f"{corpus.path}/tokenised/test.en")
    tested = first.evaluation_command("loss_stacked")
    assert has(tested, "loss", stacked.path)
    assert has(tested, "--model", f"cape={first.folder}/train/checkpoint_best.pt")

    _, (first, *_) = runs("demo_fairseq", tmp_path)
    command = first.train_command
    assert Path(command[0]).name == "fairseq-train"
    assert command[1].endswith("/bin")
    assert has(command, "--seed", 5, "--save-dir", first.folder / "train", "--cpu")


def test_espnet_is_trained_by_asr_train_that_resumes(tmp_path):
    (digits, stats), (first, *_) = runs("digits", tmp_path)
    command = first.train_command
    assert command[1:3] == ["-m", "espnet2.bin.asr_train"]
    assert has(command, "--encoder_conf", "pos=cape", "--encoder_conf", "max_global_shift=15.0")
    assert has(command, "--ngpu", 0, "--resume", "true", "--output_dir", first.folder / "train")
    files = f"{digits.path}/data/train/wav.scp,speech,sound"
    assert has(command, "--train_data_path_and_name_and_type", files)
    assert has(stats.command(), "--collect_stats", "true")
    assert has(first.evaluation_command("length"), "--bins", "--device")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar10", "torch.distributed.run --nproc-per-node=4 --standalone"),
        ("multi30k", "++distributed_training.distributed_world_size=4 ++common.cpu=false"),
        ("demo_fairseq", "--distributed-world-size 4"),
        ("digits", "--ngpu 4 --multiprocessing_distributed true"),
    ],
)
def test_several_gpus_are_the_hosts_own_affair(name, words, tmp_path):
    _, (first, *_) = runs(name, tmp_path, FOUR)
    assert set(words.split()) <= set(first.train_command)


def test_missing_scripts_of_timm_are_told_with_the_commit_to_take():
    (one,) = study.load(study.find("cifar10"))
    (line,) = hosts.problems([one], Machine(timm_scripts=Path("/nowhere")))
    assert "no train.py of timm in /nowhere" in line
    assert "checkout aa4b5850" in line
