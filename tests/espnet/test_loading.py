"""Weights that are not an encoder's: refused before anything has changed, whoever made them."""

import shutil

import pytest
import torch
import yaml

from espnet_support import CONFORMER, SIZES, STOCK, make

ESPNETS = {**STOCK, "model": "espnet"}


def conf(pos: str, **options: object) -> dict[str, object]:
    return {"encoder_conf": {**SIZES, "pos": pos, **options}}


@pytest.mark.parametrize("model", ["espnet", "cape_asr"])
def test_a_checkpoint_that_is_refused_has_changed_nothing(build, model):
    ours, other = (build(**STOCK, model=model, **conf(pos)) for pos in ("cape", "sinpos"))
    before = {name: each.clone() for name, each in ours.state_dict().items()}
    with pytest.raises(ValueError, match="encoder_conf pos sinpos"):
        ours.load_state_dict({name: each + 1 for name, each in other.state_dict().items()})
    changed = {n for n, each in ours.state_dict().items() if not each.equal(before[n])}
    # ESPnet's model loads its frontend first
    assert changed <= {"frontend.logmel.melmat"} if model == "espnet" else not changed


def test_a_refused_resume_leaves_the_config_of_the_training(trained, asr_train, tmp_path):
    exp = shutil.copytree(trained, tmp_path / "exp")
    before = (exp / "config.yaml").read_text()
    assert yaml.safe_load(before)["encoder_conf"]["pos"] == "sinpos"
    with pytest.raises(ValueError, match="encoder_conf pos sinpos"):
        asr_train(exp, "--resume", "true", "--max_epoch", 2, **conf("cape"))
    assert (exp / "config.yaml").read_text() == before


# ESPnet's own encoders keep no mark, and its recognition forgives names that do not fit

OF_REL_POS = dict(CONFORMER, pos_enc_layer_type="rel_pos", selfattention_layer_type="rel_selfattn")


@pytest.fixture
def recognised_with(build, tmp_path):
    """(encoder, its options) of weights and of a config.yaml → what recognition builds of both."""

    def recognised_with(trained, given):
        models = []
        for encoder, options in (trained, given):
            settings = dict(ESPNETS, encoder=encoder, encoder_conf={**SIZES, **options})
            models.append(build(**settings))
        torch.save(models[0].state_dict(), tmp_path / "model.pth")
        return models[1].load_state_dict(torch.load(tmp_path / "model.pth"), strict=False)

    return recognised_with


STOCK_REL_POS = ("conformer", OF_REL_POS)
STOCK_ABS_POS = ("conformer", CONFORMER | dict(pos_enc_layer_type="abs_pos"))
STOCK_ABS_POS[1]["selfattention_layer_type"] = "selfattn"


@pytest.mark.parametrize("pos", ["cape", "rope", "relpos"])
@pytest.mark.parametrize("stock", [STOCK_REL_POS, ("cape_conformer", dict(pos="espnet_rel_pos"))])
def test_weights_of_espnets_rel_pos_are_not_recognised_with_by_another_pos(
    stock, pos, recognised_with
):
    given = ("cape_conformer", dict(CONFORMER, pos=pos))
    stock = (stock[0], {**CONFORMER, **stock[1]})
    with pytest.raises(ValueError, match=f"encoder_conf pos {pos}: .*espnet_rel_pos"):
        recognised_with(stock, given)


@pytest.mark.parametrize(
    ("stock", "named"),
    [(STOCK_ABS_POS, "espnet_rel_pos"), (("cape_conformer", dict(CONFORMER, pos="rope")), "rope")],
)
def test_weights_without_rel_pos_are_not_recognised_with_by_espnet_rel_pos(
    stock, named, recognised_with
):
    with pytest.raises(ValueError, match=named):
        recognised_with(stock, ("cape_conformer", dict(CONFORMER, pos="espnet_rel_pos")))


def test_a_part_of_the_weights_is_not_judged():
    encoder = make("cape_conformer", "espnet_rel_pos")
    state = {name: each for name, each in encoder.state_dict().items() if ".0." in name}
    encoder.load_state_dict({n: v for n, v in state.items() if "pos" not in n}, strict=False)


# another hop than in training

HOP = {"frontend_conf": {**STOCK["frontend_conf"], "hop_length": 160}}
AT_20_MS = dict(frame_shift=0.02)


@pytest.mark.parametrize("pos", ["cape", "sinpos", "rope", "alibi", "random"])
def test_a_model_that_knows_its_hop_recognises_with_another_one(pos, build, caplog):
    trained = build(**STOCK, model="cape_asr", **conf(pos))
    other = build(**{**STOCK, **HOP}, model="cape_asr", **conf(pos, **AT_20_MS))
    other.load_state_dict(trained.state_dict())
    assert "encoder_conf frame_shift 0.01" in caplog.text


@pytest.mark.parametrize(
    ("model", "pos"), [("cape_asr", "abspos"), ("cape_asr", "relpos"), ("espnet", "cape")]
)
def test_others_say_that_the_hop_itself_must_be_that_of_training(model, pos, build):
    trained = build(**STOCK, model=model, **conf(pos))
    other = build(**{**STOCK, **HOP}, model=model, **conf(pos, **AT_20_MS))
    with pytest.raises(ValueError, match=r"frame_shift 0\.01.*hop"):
        other.load_state_dict(trained.state_dict())
