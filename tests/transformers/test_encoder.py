"""cape_eurobert, and what a decoder or its sizes cannot have."""

import pytest
import torch
from transformers import EuroBertConfig, EuroBertForMaskedLM

from cape_support import replica

CLOSE = dict(rtol=1e-4, atol=2e-5)
MASKED = dict(kind="cape_eurobert", auto="AutoModelForMaskedLM")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("pos", ["cape", "relpos", "conditional"])
@torch.no_grad()
def test_padding_on_the_right_changes_nothing(eight, create, tokens, pos):
    model, mask = create(pos, **MASKED), torch.ones_like(tokens)
    mask[0, 9:] = 0
    padded, alone = model(tokens, attention_mask=mask).logits, model(tokens[:1, :9]).logits
    torch.testing.assert_close(padded[:1, :9], alone, **CLOSE)


def test_rope_is_transformers_eurobert(create, tokens, sizes):
    ours = create("rope", **MASKED)
    stock = EuroBertForMaskedLM(EuroBertConfig(**sizes, mask_token_id=3)).eval()
    assert not stock.load_state_dict(ours.state_dict(), strict=False).missing_keys
    torch.testing.assert_close(ours(tokens).logits, stock(tokens).logits, rtol=1e-5, atol=2e-6)


def test_it_centres_and_spreads(create, tokens):
    model = create("cape", **MASKED)
    assert model.config.mean_normalize is model.config.spread is True
    moved = model(tokens, position_ids=torch.arange(13)[None] + 100).logits
    torch.testing.assert_close(moved, model(tokens).logits, **CLOSE)


@pytest.mark.parametrize(
    ("pos", "named"),
    [("conditional", "conditional.*encoder"), ("rotations", "num_key_value_heads=4")],
)
def test_what_a_decoder_cannot_serve_is_refused(eight, create, pos, named):
    """What depends on other tokens; rotations of each head, where keys have fewer heads."""
    with pytest.raises(ValueError, match=named):
        create(pos)


def test_a_module_of_all_layers_is_refused_in_a_replica_of_data_parallel(eight, create, tokens):
    """Its first layer alone has a copy; the others would read and train the original."""
    shared, apart = (replica(create(pos, num_key_value_heads=4)) for pos in ("t5_shared", "t5"))
    with pytest.raises(ValueError, match="DataParallel"):
        shared(tokens)
    assert apart(tokens).logits.shape == (2, 13, 97)
