"""A checkpoint knows its variant: another ``pos`` does not take its weights."""

import logging
from pathlib import Path

import pytest
import torch

pytest.importorskip("espnet2")

import numpy as np
import soundfile
import yaml
from espnet2.main_funcs.average_nbest_models import average_nbest_models
from espnet2.tasks.asr import ASRTask
from espnet2.train.reporter import Reporter

from cape_plugins.espnet.encoder import CapeTransformerEncoder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "espnet"
SIZES = dict(output_size=16, attention_heads=2, linear_units=32, num_blocks=1)
REFUSED = "the checkpoint was trained with encoder_conf pos: sinpos, this model has pos: cape: set"


def make(pos: str = "cape", **options) -> CapeTransformerEncoder:
    return CapeTransformerEncoder(8, pos=pos, **SIZES, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An epoch of asr_train with sinpos in ``exp``, and its config."""
    folder = tmp_path_factory.mktemp("mark")
    names = [f"utterance{index}" for index in range(4)]
    for name, samples in zip(
        names, np.random.default_rng(0).normal(0, 0.1, (4, 8000)), strict=True
    ):
        soundfile.write(folder / f"{name}.wav", samples, 8000)
    (folder / "wav.scp").write_text("".join(f"{name} {folder / name}.wav\n" for name in names))
    (folder / "text").write_text("".join(f"{name} low high\n" for name in names))
    (folder / "tokens.txt").write_text("<blank>\n<unk>\nlow\nhigh\n<sos/eos>\n")
    config = {
        **{"model": "cape_asr", "model_conf": {"ctc_weight": 1.0}, "normalize": "utterance_mvn"},
        **{"frontend": "cape_fbank", "frontend_conf": {"fs": "8k", "n_mels": 16}},
        **{"encoder": "cape_transformer", "encoder_conf": {**SIZES, "pos": "sinpos"}},
        **{"optim": "adam", "max_epoch": 2, "batch_type": "unsorted", "batch_size": 4, "ngpu": 0},
        **{"best_model_criterion": [["valid", "loss", "min"]], "keep_nbest_models": 2},
        **{"num_workers": 0, "use_tensorboard": False, "use_matplotlib": False},
        **{"token_type": "word", "token_list": str(folder / "tokens.txt")},
    }
    for part in ("train", "valid"):
        config[f"{part}_data_path_and_name_and_type"] = [
            [str(folder / "wav.scp"), "speech", "sound"],
            [str(folder / "text"), "text", "text"],
        ]
        config[f"{part}_shape_file"] = [str(folder / "wav.scp")]  # only its keys are read
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    asr_train(folder)
    return folder


def asr_train(folder: Path, *more: object, out: str = "exp") -> None:
    handlers = logging.root.handlers[:]
    try:
        command = ("--config", folder / "config.yaml", "--output_dir", folder / out, *more)
        ASRTask.main(cmd=[*map(str, command)])
    finally:
        logging.root.handlers[:] = handlers


def test_another_pos_is_refused_in_one_line(folder):
    with pytest.raises(ValueError, match=REFUSED) as refused:
        make("cape").load_state_dict(make("sinpos").state_dict())
    assert "\n" not in str(refused.value)
    make("sinpos").load_state_dict(make("sinpos").state_dict())


def test_to_resume_with_another_pos_is_refused(folder):
    with pytest.raises(ValueError, match=REFUSED):
        asr_train(folder, "--resume", "true", "--max_epoch", 3, "--encoder_conf", "pos=cape")


def test_init_param_of_another_pos_is_refused_unless_the_mark_is_left_out(folder):
    given = ["--max_epoch", 1, "--encoder_conf", "pos=cape", "--init_param"]
    with pytest.raises(ValueError, match=REFUSED):
        asr_train(folder, *given, folder / "exp" / "2epoch.pth", out="other")
    asr_train(folder, *given, f"{folder / 'exp' / '2epoch.pth'}:::encoder.mark", out="other")


def test_inference_and_evaluation_refuse_a_config_of_another_pos(folder, tmp_path):
    from espnet2.bin.asr_inference import Speech2Text

    from cape_plugins.evaluation.espnet import checkpoints

    config = yaml.safe_load((folder / "exp" / "config.yaml").read_text())
    config["encoder_conf"]["pos"] = "cape"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    model = tmp_path / "x.pth"
    model.write_bytes((folder / "exp" / "2epoch.pth").read_bytes())
    with pytest.raises(ValueError, match=REFUSED):
        Speech2Text(tmp_path / "config.yaml", model)
    with pytest.raises(ValueError, match=f"x.pth cannot be loaded: {REFUSED}") as refused:
        checkpoints.load(checkpoints.sources([str(model)], None)[0])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("epochs", [3, 7])
def test_the_average_of_checkpoints_keeps_the_mark(epochs, tmp_path):
    reporter = Reporter()
    for epoch in range(1, epochs + 1):
        with reporter.observe("valid", epoch) as observed:
            observed.register({"loss": torch.tensor(1.0 / epoch)})
            observed.next()
        torch.save(make(max_global_scale=1.7).state_dict(), tmp_path / f"{epoch}epoch.pth")
    average_nbest_models(tmp_path, reporter, [("valid", "loss", "min")], epochs)
    average = torch.load(tmp_path / "valid.loss.ave.pth", weights_only=True)
    make(max_global_scale=1.7).load_state_dict(average)
    with pytest.raises(ValueError, match="trained with encoder_conf pos: cape, this model has pos"):
        make("sinpos").load_state_dict(average)


def test_other_settings_are_said_aloud(caplog):
    state = make(max_global_shift=5.0).state_dict()
    make(max_global_shift=5.0).load_state_dict(state)
    assert caplog.messages == []
    make(max_global_shift=7.0).load_state_dict(state)
    assert caplog.messages == [
        "the checkpoint was trained with encoder_conf max_global_shift: 5, this model has 7"
    ]


@pytest.mark.parametrize("name", ["abspos", "cape", "relpos"])
def test_checkpoints_from_before_the_mark_load_strictly_and_are_evaluated(name, tmp_path):
    from cape_plugins.evaluation.espnet import checkpoints

    for source, target in ((f"{name}.yaml", "config.yaml"), (f"{name}.pth", "x.pth")):
        (tmp_path / target).write_bytes((FIXTURES / source).read_bytes())
    model, _ = ASRTask.build_model_from_file(tmp_path / "config.yaml", None)
    old = torch.load(tmp_path / "x.pth", weights_only=True)
    assert "encoder.mark._extra_state" not in old
    model.load_state_dict(old, strict=True)
    checkpoints.load(checkpoints.sources([str(tmp_path / "x.pth")], None)[0])
