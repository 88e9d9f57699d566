"""The hosts' commands, as cape-run types them."""

import importlib.util
import os
from pathlib import Path

import pytest

from cape_studies import hosts, run, yamls
from cape_studies.hosts import Machine
from cape_studies.plan import Plan, Run

ALONE, FOUR = (Machine(gpus, Path("/scripts")) for gpus in (0, 4))


def runs(name, tmp_path, machine=ALONE):
    """Preparations and all runs of a study of the checkout, its data not there."""
    plan = Plan(yamls.find(name), out=tmp_path, machine=machine)
    plan.prepare(lambda one: None)
    return plan.prepared, [Run(plan, variant, 5) for variant in plan.study.variants]


def trains(run):
    return run.train_command(run.trained)


def evaluates(run, name):
    test = run.tests[name]
    return run.test_command(test, test.scores, test.folder / "items.csv")


def has(command, *expected):
    """Whether words stand one after the other in a command."""
    expected = [str(word) for word in expected]
    return any(command[i : i + len(expected)] == expected for i in range(len(command)))


def test_options_are_typed_as_argparse_and_as_espnet_read_them():
    options = {"a": 1, "b": True, "c": [1, "x"], "d": {"k": 2, "l": True}, "e": None, "f": False}
    plain = "--a 1 --b --c 1 x --d k=2 l=True"
    assert hosts.words(options) == plain.split()
    typed = "--a 1 --b true --c 1 --c x --d k=2 --d l=true --f false"
    assert hosts.host("espnet").words(options) == typed.split()
    assert hosts.words({"bins": []}) == ["--bins"]


def test_timm_is_trained_by_train_py_and_tested_by_our_evaluation(tmp_path):
    (step,), (first, *_) = runs("cifar10", tmp_path)
    command = trains(first)
    assert command[1] == "/scripts/train.py"
    assert has(command, "--data-dir", step.folder)
    assert has(command, "--model-kwargs", "patch_size=4", "img_size=32", "embed_dim=64")
    assert has(command, "--seed", 5)
    assert has(command, "--output", first.folder, "--experiment", "train")
    assert has(command, "--device", "cpu")
    assert "--resume" not in command
    tested = evaluates(first, "sizes")
    assert tested[1:4] == ["-m", "cape_studies.evaluate", "timm"]
    checkpoint = first.folder / "train" / "last.pth.tar"
    assert has(tested, "--checkpoint", f"{first.variant}={checkpoint}")
    assert has(tested, "--resolutions", 24, 28, 32)


def test_timm_goes_on_from_the_last_checkpoint_that_there_is(tmp_path):
    _, (first, *_) = runs("cifar10", tmp_path)
    last = first.folder / "train" / "last.pth.tar"
    last.parent.mkdir(parents=True)
    last.touch()
    assert has(trains(first), "--resume", last)


def test_train_py_takes_every_command_of_the_study(tmp_path):
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS does not name a folder with timm's train.py")
    pytest.importorskip("timm")
    spec = importlib.util.spec_from_file_location("timm_train", Path(scripts) / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    for name in ("cifar10", "cifar10_mixed"):
        for one in runs(name, tmp_path, Machine(timm_scripts=Path(scripts)))[1]:
            parsed = train.parser.parse_args(trains(one)[4:])  # behind --config FILE
            assert parsed.model == one.options["model"]
            assert parsed.model_kwargs == one.options["model-kwargs"]
            assert (parsed.train_img_sizes is None) == (name == "cifar10")


def test_fairseq_is_trained_by_hydra_with_a_recipe_and_by_fairseq_train_without(tmp_path):
    (corpus, stacked), (first, *_) = runs("multi30k", tmp_path)
    command = trains(first)
    assert Path(command[0]).name == "fairseq-hydra-train"
    assert has(command, "--config-name", "multi30k", f"++task.data={corpus.folder}/data-bin")
    assert {"++model.pos=cape", "++common.seed=5", "++common.cpu=true"} < set(command)
    assert f"hydra.run.dir={first.folder}/train" in command
    assert has(stacked.command, "--source", f"{corpus.folder}/tokenised/test.en")
    tested = evaluates(first, "loss_stacked")
    assert has(tested, "loss", stacked.folder)
    assert has(tested, "--model", f"cape={first.folder}/train/checkpoint_best.pt")

    _, (first, *_) = runs("demo_fairseq", tmp_path)
    command = trains(first)
    assert Path(command[0]).name == "fairseq-train"
    assert command[1].endswith("/bin")
    assert has(command, "--seed", 5, "--save-dir", first.folder / "train", "--cpu")


def test_espnet_is_trained_by_asr_train_that_resumes(tmp_path):
    (digits, stats), (first, *_) = runs("digits", tmp_path)
    command = trains(first)
    assert command[1:3] == ["-m", "espnet2.bin.asr_train"]
    assert has(command, "--encoder_conf", "pos=cape", "--encoder_conf", "max_global_shift=15.0")
    assert has(command, "--ngpu", 0, "--resume", "true", "--output_dir", first.folder / "train")
    files = f"{digits.folder}/data/train/wav.scp,speech,sound"
    assert has(command, "--train_data_path_and_name_and_type", files)
    assert has(stats.command, "--collect_stats", "true")
    assert has(evaluates(first, "length"), "--bins", "--device")


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
    assert set(words.split()) <= set(trains(first))


SAID = {
    "timm": (
        "Train: 3 [ 390/781 ( 50%)]  Loss: 2.16 (2.25)  Time: 0.711s,   89.98/s",
        {"epochs": 8},
        "epoch 3, loss 2.16",
    ),
    "fairseq": (
        "2026-11-28 | INFO | train_inner | epoch 002:     50 / 300 loss=9.1, nll_loss=8.2, "
        "ppl=310.4, wps=4000, num_updates=350, lr=0.001",
        {"optimization": {"max_update": 800}},
        "epoch 2, loss 9.1",
    ),
    "espnet": (
        "(trainer:810) INFO: 4epoch:train:51-50batch: iter_time=0.050, loss_ctc=2.9, loss=2.831, x",
        {"max_epoch": 8, "num_iters_per_epoch": 100},
        "epoch 4, loss 2.831",
    ),
    "transformers": ("step 175/400 loss=4.200", {}, "step 175 of 400, loss 4.200"),
}


@pytest.mark.parametrize("name", hosts.NAMES)
def test_a_line_of_a_hosts_log_says_how_far_a_training_is(name):
    line, options, told = SAID[name]
    found = hosts.host(name).progress(line, options)
    assert found.told == told
    assert found.part == pytest.approx(0.4375, abs=0.001)
    if options:  # else the line itself says of how many
        assert hosts.host(name).progress(line, {}).part is None
    assert hosts.host(name).progress("Loading data", options) is None


@pytest.mark.parametrize("name", hosts.NAMES)
def test_a_host_that_is_not_installed_is_told_with_the_extra_that_brings_it(
    name, monkeypatch, tmp_path, capsys
):
    known = importlib.util.find_spec
    module = hosts.host(name).MODULE
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted: None if wanted == module else known(wanted)
    )
    study = {"transformers": "stdlib_code"}.get(name, f"demo_{name}")
    with pytest.raises(SystemExit) as stop:
        run.main([study, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert f"{name} is not installed: pip install 'cape-studies[{name}]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "variant", "expected"),
    [
        ("my_sentences", "cape", "--arch cape_transformer_tiny --pos cape"),
        ("my_sentences", "rope", "--pos rope --encoder-layers 3 "),
        ("my_text", "alibi", "AutoConfig.for_model('cape_llama', pos='alibi', hidden_size=64, "),
        ("my_text", "rope_yarn", "  # in the test rope_parameters of rope_type 'yarn'"),
        ("my_recordings", "rope", "{pos: rope, frame_shift: <frame_shift>, output_size: 128, "),
        ("my_backbone", "stock", "create_model('vit_small_patch16_dinov3', img_size='<side>', ref"),
    ],
)
def test_a_host_says_what_a_user_types_to_take_a_variant(name, variant, expected, tmp_path):
    _, found = runs(name, tmp_path)
    one = next(run for run in found if run.variant == variant)
    assert expected in one.typed()


@pytest.mark.parametrize(
    ("host", "line", "loss"),
    [
        ("espnet", "3epoch results: [train] loss=9.1, [valid] loss_ctc=4, loss=2.5, time=1", 2.5),
        ("espnet", "3epoch:train:1-50batch: loss=9.1", None),
        ("fairseq", "epoch 001 | valid on 'valid' subset | loss 8.25 | ppl 300", 8.25),
        ("fairseq", '{"epoch": 1, "valid_loss": "8.25", "valid_ppl": "300"}', 8.25),
        ("fairseq", "epoch 001 | loss 9.1 | ppl 500", None),
        ("timm", "Train: 3 [  50/781 (  6%)]  Loss: 2.1 (2.3)", None),
    ],
)
def test_the_loss_of_a_validation_is_read_from_the_hosts_own_line(host, line, loss):
    assert hosts.host(host).validated(line) == loss
