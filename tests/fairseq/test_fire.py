"""A variant of another package, FIRE of examples/cape-fire, by fairseq's own commands."""

import shutil

import pytest
import torch

pytest.importorskip("fairseq")

from cape_support import ROOT
from fairseq_support import TRAIN, call, run, train

FIRE = "--pos fire --fire-width 8"


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The folder of a training of two updates."""
    folder = tmp_path_factory.mktemp("fire")
    train(data, folder, f"{FIRE} --max-update 2")
    return folder


def test_the_help_lists_its_options():
    said = run("fairseq-train data --arch cape_transformer_tiny --help")
    assert "--fire-width" in said
    assert "fire, cape_fire: hidden channels" in said.replace("\n", " ").replace("  ", "")


def test_it_trains_and_a_training_is_resumed(data, trained, tmp_path):
    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
    model = state["cfg"]["model"]
    assert (model["pos"], model["fire_width"], model["fire_threshold"]) == ("fire", 8, 512.0)
    learned = {key: one for key, one in state["model"].items() if key.endswith("multiplier")}
    assert len({key.split(".layers.")[0] for key in learned}) == 2  # encoder and decoder
    folder = shutil.copytree(trained, tmp_path / "resumed")
    state, _ = train(data, folder, f"{FIRE} --max-update 4")
    assert state["optimizer_history"][-1]["num_updates"] == 4
    assert any(not torch.equal(one, state["model"][key]) for key, one in learned.items())


def test_it_translates(data, trained):
    flags = "--cpu --beam 2 --required-batch-size-multiple 1 --max-len-b 9"
    said = run(f"fairseq-generate {data} --path {trained}/checkpoint_last.pt {flags}")
    assert said.count("\nH-") == 10


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--pos cape", "trained with --pos fire, this training has --pos cape"),
        ("--pos fire", "trained with --fire-width 8, this training has --fire-width 32"),
        ("--pos rope --fire-width 8", "--fire-width = 8 is for fire, cape_fire; rope takes"),
        ("--pos fire --fire-width 0", "fire_width must be an integer ≥ 1, got 0"),
    ],
)
def test_another_variants_model_or_option_refuses_it_in_one_line(data, trained, flags, says):
    line = f"fairseq-train {data} {TRAIN} --max-update 4 --save-dir {trained} {flags}"
    status, said = call(line)
    assert status == 2, said
    assert says in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_file_of_hydra_names_it(data, tmp_path):
    flags = f"--config-dir {ROOT}/configs/fairseq --config-name wmt14_en_de_18l task.data={data}"
    flags += " common.cpu=true common.fp16=false model.share_all_embeddings=false"
    flags += f" hydra.run.dir={tmp_path} checkpoint.save_dir={tmp_path} optimization.max_update=1"
    status, said = call(f"fairseq-hydra-train {flags} model.pos=fire model.fire_width=0")
    assert status == 2, said
    assert "fire_width must be an integer ≥ 1, got 0" in said.splitlines()[-1]
