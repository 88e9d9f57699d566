"""From ESPnet's own Conformer with rel_pos to ours: what its page says of weights and outputs."""

import pytest
import torch
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model

from cape_plugins.mark import variant_of
from cape_support import SEQUENCES
from espnet_support import CONFORMER, SIZES, STOCK, audio

RECIPE = dict(pos_enc_layer_type="rel_pos", selfattention_layer_type="rel_selfattn")
CONF = {**SIZES, **CONFORMER, **RECIPE}  # rel_pos_type: latest
LAYERS = [f"encoder.encoders.{layer}.self_attn" for layer in range(SIZES["num_blocks"])]
OF_REL_POS = {
    f"{at}.{n}" for at in LAYERS for n in ("linear_pos.weight", "pos_bias_u", "pos_bias_v")
}
KEYS = [f"{at}.positional.keys" for at in LAYERS]
NEW = {"relpos": set(KEYS), "relpos_first": {KEYS[0]}, "abspos": {"encoder.positions.added.table"}}


@pytest.fixture(scope="module")
def models(build):
    """encoder, options → ESPnet's model with its own frontend."""

    def models(encoder, model="espnet", **options):
        return build(**{**STOCK, "model": model}, encoder=encoder, encoder_conf={**CONF, **options})

    return models


@pytest.fixture(scope="module")
def stock(models):
    """ESPnet's own Conformer, with weights off their first values."""

    def stock(**options):
        model = models("conformer", **options)
        for parameter in model.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        return model.eval()

    return stock


@pytest.fixture(scope="module")
def checkpoint(stock, tmp_path_factory):
    """The file of its weights."""
    path = tmp_path_factory.mktemp("stock") / "stock.pth"
    torch.save(stock().state_dict(), path)
    return path


@pytest.mark.parametrize("rel_pos_type", ["latest", "legacy"])
@pytest.mark.parametrize("model", ["espnet", "cape_asr"])
def test_espnet_rel_pos_gives_what_stock_gives_with_padding_too_loaded_either_way(
    model, rel_pos_type, models, stock
):
    theirs = stock(rel_pos_type=rel_pos_type)
    ours = models("cape_conformer", model, pos="espnet_rel_pos", rel_pos_type=rel_pos_type).eval()
    ours.load_state_dict(theirs.state_dict())
    back = models("conformer", rel_pos_type=rel_pos_type).eval()
    back.load_state_dict(ours.state_dict())
    with torch.no_grad():
        expected, lengths = theirs.encode(*audio(1.0, 0.6))
        for found, olens in (one.encode(*audio(1.0, 0.6)) for one in (ours, back)):
            assert olens.tolist() == lengths.tolist()
            for row, length in enumerate(lengths.tolist()):
                torch.testing.assert_close(
                    found[row, :length], expected[row, :length], rtol=0, atol=1e-6
                )


@pytest.mark.parametrize("pos", [*SEQUENCES, "espnet_rel_pos"])
def test_all_stock_weights_carry_over_but_for_those_of_rel_pos(pos, models, checkpoint):
    model, given = models("cape_conformer", pos=pos), torch.load(checkpoint)
    load_pretrained_model(str(checkpoint), model, ignore_init_mismatch=True)
    found = model.state_dict()
    carried = {key for key, value in given.items() if key in found and value.equal(found[key])}
    assert given.keys() - carried == (set() if pos == "espnet_rel_pos" else OF_REL_POS)
    new = {name for name, _ in model.named_parameters()} - given.keys()
    assert new == NEW.get(pos, set())


def test_training_starts_from_stock_weights_only_where_mismatch_is_allowed(
    checkpoint, asr_train, tmp_path
):
    settings = dict(encoder="cape_conformer", encoder_conf={**CONF, "pos": "rope"}, **STOCK)
    settings |= dict(model="espnet", optim_conf={"lr": 1e-3}, num_iters_per_epoch=2)
    with pytest.raises(ValueError, match="--ignore_init_mismatch true"):
        asr_train(tmp_path, "--init_param", checkpoint, **settings)
    asr_train(tmp_path, "--init_param", checkpoint, "--ignore_init_mismatch", "true", **settings)
    trained, given = torch.load(tmp_path / "1epoch.pth"), torch.load(checkpoint)
    assert variant_of(trained) == "rope"
    moved = (trained["ctc.ctc_lo.weight"] - given["ctc.ctc_lo.weight"]).abs().max()
    assert 0 < moved < 3e-3  # by two updates
