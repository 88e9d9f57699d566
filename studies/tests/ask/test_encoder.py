"""my_recordings beside ESPnet's own rel_pos, in the encoder that the user chooses."""

from inspect import signature

import pytest
import yaml
from hydra.utils import get_method

from cape_studies import config, run, yamls
from cape_studies.plan import Plan

STUDY = yamls.find("my_recordings")


#: as the preparation writes them
FACTS = dict(rate=8000, token_type="word", n_fft=256, win_length=200, hop_length=80, n_mels=40)
FACTS |= dict(batch_bins=9000, max_epoch=2, num_iters_per_epoch=4, updates=8, frame_shift=0.01)
FACTS |= dict(max_global_shift=1.5, found="9 files", within="1 s", tests=["1 s=/test"])


def runs(tmp_path, *changes):
    """Variant → its run; the data are not there."""
    plan = Plan(STUDY, ["seeds=[0]", *changes], out=tmp_path)
    plan.facts |= FACTS
    plan.prepare(lambda one: None)
    return {one.variant: one for one in plan.runs()}


def typed(one):
    """What a user types next to have a variant, as ESPnet reads it."""
    return yaml.safe_load(one.typed())


def test_rel_pos_differs_from_the_other_variants_in_its_positions_alone(tmp_path):
    found = {name: typed(run) for name, run in runs(tmp_path).items()}
    assert found["rel_pos"]["encoder_conf"]["pos"] == "espnet_rel_pos"
    assert found["rope"]["encoder_conf"]["pos"] == "rope"
    assert {one["encoder"] for one in found.values()} == {"cape_transformer"}
    # rel_pos is never without it
    scales = {name: one["encoder_conf"].get("content_scale") for name, one in found.items()}
    assert "content_scale" not in found["rel_pos"]["encoder_conf"]
    assert scales.pop("rel_pos") is None
    assert {*scales.values()} == {"sqrt"}


def test_with_a_conformer_rel_pos_is_the_stock_encoder_and_it_and_ours_are_built(tmp_path):
    tasks = pytest.importorskip("espnet2.tasks.asr")
    import cape_plugins.espnet  # noqa: F401

    found = runs(tmp_path, "encoder=conformer")
    stock = typed(found["rel_pos"])
    assert stock["encoder"] == "conformer"
    assert stock["encoder_conf"].items() >= {"rel_pos_type": "latest", "num_blocks": 3}.items()
    assert "pos" not in stock["encoder_conf"]
    assert typed(found["rope"])["encoder"] == "cape_conformer"
    for one in (found[name] for name in ("rel_pos", "relpos", "cape_rope")):
        command = one.train_command(one.trained)[3:]
        arguments = tasks.ASRTask.get_parser().parse_args(command)
        arguments.token_list = ["<blank>", "<unk>", "a", "<sos/eos>"]
        tasks.ASRTask.build_model(arguments)


@pytest.mark.parametrize(
    "name", ["my_images", "my_backbone", "my_sentences", "my_text", "my_recordings"]
)
def test_the_length_of_training_is_epochs_in_all_and_options_epochs_is_told_so(name):
    path = yamls.find(name)
    assert config.load(path, ["epochs=20"]).epochs == 20
    with pytest.raises(ValueError, match=r"no options\.epochs: is epochs"):
        config.load(path, ["options.epochs=20"])


@pytest.mark.parametrize(
    ("name", "host", "change"),
    [
        ("my_images", "timm", []),
        ("my_backbone", "timm", []),
        ("my_sentences", "fairseq", []),
        ("my_text", "transformers", []),
        ("my_recordings", "espnet2", ["encoder=transformer"]),
        ("my_recordings", "espnet2", ["encoder=conformer"]),
    ],
)
def test_what_a_study_tells_its_preparation_are_arguments_of_it(name, host, change):
    pytest.importorskip(host)
    step = config.load(yamls.find(name), change).prepare["prepared"]
    chooses = step.facts.pop("_target_")
    functions = (f"{step.module}.prepare", step.options), (chooses, step.facts)
    for function, options in functions:
        told = {option.replace("-", "_") for option in options}
        assert told <= signature(get_method(function)).parameters.keys()


@pytest.mark.release
def test_a_conformer_is_trained_and_both_its_scores_are_in_the_answer(wavs, tmp_path, capsys):
    pytest.importorskip("espnet2")
    words = ["my_recordings", "--data", str(wavs), "--out", str(tmp_path / "out"), "--quick"]
    run.main([*words, "encoder=conformer", "run=[rope]"])
    said = capsys.readouterr().out
    for by in ("by search with a CTC weight of 0.3", "by CTC alone"):
        assert f"In training's durations, {by}: rope has the best mean" in said
        assert f"Longer than training's, {by}: rope has the best mean" in said
