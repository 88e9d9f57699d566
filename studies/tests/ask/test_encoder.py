"""my_recordings beside ESPnet's own rel_pos, in the encoder that the user chooses."""

import pytest
import yaml

from cape_studies import config
from cape_studies.plan import Plan

STUDY = config.find("my_recordings")


#: as the preparation writes them
FACTS = dict(rate=8000, token_type="word", n_fft=256, win_length=200, hop_length=80, n_mels=40)
FACTS |= dict(batch_bins=9000, max_epoch=2, num_iters_per_epoch=4, updates=8, frame_shift=0.01)
FACTS |= dict(max_global_shift=1.5, found="9 files", within="1 s", tests=["1 s=/test"])


def runs(tmp_path, *changes):
    """Variant → its run; the data are not there."""
    plan = Plan(STUDY, ["seeds=[0]", *changes], out=tmp_path)
    plan.facts |= FACTS
    plan.prepare(lambda one: None)
    return {run.variant: run for run in plan.runs()}


def typed(run):
    """What a user types next to have a variant, as ESPnet reads it."""
    own = run.plan.study.variants[run.variant].options
    return yaml.safe_load(run.plan.host.typed(run.options, own, run.variant))


def test_rel_pos_differs_from_the_other_variants_in_its_positions_alone(tmp_path):
    found = {name: typed(run) for name, run in runs(tmp_path).items()}
    assert found["rel_pos"]["encoder_conf"]["pos"] == "espnet_rel_pos"
    assert found["rope"]["encoder_conf"]["pos"] == "rope"
    assert {one["encoder"] for one in found.values()} == {"cape_transformer"}


def test_with_a_conformer_rel_pos_is_the_stock_encoder_and_all_are_built(tmp_path):
    tasks = pytest.importorskip("espnet2.tasks.asr")
    import cape_plugins.espnet  # noqa: F401

    found = runs(tmp_path, "encoder=conformer")
    assert typed(found["rel_pos"]) == {
        "encoder": "conformer", "encoder_conf": {"rel_pos_type": "latest"}
    }  # fmt: skip
    assert typed(found["rope"])["encoder"] == "cape_conformer"
    for run in found.values():
        command = run.train_command(run.trained)[3:]
        arguments = tasks.ASRTask.get_parser().parse_args(command)
        arguments.token_list = ["<blank>", "<unk>", "a", "<sos/eos>"]
        tasks.ASRTask.build_model(arguments)


def test_an_encoder_that_there_is_not_is_answered_by_those_that_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"encoder/lstm.*conformer transformer$"):
        runs(tmp_path, "encoder=lstm")


@pytest.mark.parametrize("name", ["my_images", "my_backbone", "my_sentences", "my_recordings"])
def test_the_length_of_training_is_epochs_in_all_and_options_epochs_is_told_so(name):
    path = config.find(name)
    assert config.load(path, ["epochs=20"]).epochs == 20
    with pytest.raises(ValueError, match=r"no options\.epochs: is epochs"):
        config.load(path, ["options.epochs=20"])
