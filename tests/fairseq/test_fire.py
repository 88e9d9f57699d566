"""A variant of another package, FIRE of examples/cape-fire, by fairseq's own commands."""

import re
import shutil

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq_support import TRAIN, call, run, train

FIRE = """--pos fire --pos-options '{"fire_width":8}'"""


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The folder of a training of two updates."""
    folder = tmp_path_factory.mktemp("fire")
    train(data, folder, f"{FIRE} --max-update 2")
    return folder


@pytest.mark.release
def test_it_trains_is_resumed_and_translates(data, trained, tmp_path):
    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
    model = state["cfg"]["model"]
    assert (model["pos"], model["pos_options"]) == ("fire", '{"fire_width":8}')
    learned = {key: one for key, one in state["model"].items() if key.endswith("multiplier")}
    assert len({key.split(".layers.")[0] for key in learned}) == 2  # encoder and decoder
    folder = shutil.copytree(trained, tmp_path / "resumed")
    state, _ = train(data, folder, f"{FIRE} --max-update 4")
    assert state["optimizer_history"][-1]["num_updates"] == 4
    assert any(not torch.equal(one, state["model"][key]) for key, one in learned.items())
    flags = "--cpu --beam 2 --required-batch-size-multiple 1 --max-len-b 9"
    said = run(f"fairseq-generate {data} --path {trained}/checkpoint_last.pt {flags}")
    assert said.count("\nH-") == 10


@pytest.mark.release
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--pos cape", "--pos fire.* cape"),
        ("--pos fire", "--pos-options fire_width 8"),
    ],
)
def test_another_variants_model_refuses_it_in_one_line(data, trained, flags, named):
    line = f"fairseq-train {data} {TRAIN} --max-update 4 --save-dir {trained} {flags}"
    assert_one_line(call(line), named)


def test_wrong_options_are_one_line(data, tmp_path):
    line = f"fairseq-train {data} --save-dir {tmp_path} {TRAIN}"
    assert_one_line(
        call(f"{line} {FIRE.replace('fire -', 'rope -')}"), "--pos-options fire_width .*cape_fire"
    )
    assert_one_line(call(f"{line} {FIRE.replace('8', '0')}"), "fire_width")


def assert_one_line(called, named):
    status, said = called
    assert status == 2, said
    assert re.search(named, said.splitlines()[-1]), said
    assert "Traceback" not in said
