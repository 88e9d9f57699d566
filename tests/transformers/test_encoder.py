"""cape_eurobert: padding, heads; what a decoder may not have."""

import pytest
import torch
from transformers import EuroBertConfig, EuroBertForMaskedLM

from cape_plugins.variants import names

CLOSE = dict(rtol=1e-4, atol=2e-5)
MASKED = dict(kind="cape_eurobert", auto="AutoModelForMaskedLM")


@pytest.mark.parametrize("pos", names(axes=1))
@torch.no_grad()
def test_padding_changes_nothing(create, tokens, pos):
    model = create(pos, **MASKED)
    mask = torch.ones_like(tokens)
    mask[0, 9:] = 0
    padded, alone = model(tokens, attention_mask=mask).logits, model(tokens[:1, :9]).logits
    torch.testing.assert_close(padded[:1, :9], alone, **CLOSE)


def test_rope_is_transformers_eurobert(create, tokens, sizes):
    ours = create("rope", **MASKED)
    stock = EuroBertForMaskedLM(EuroBertConfig(**sizes, mask_token_id=3)).eval()
    assert not stock.load_state_dict(ours.state_dict(), strict=False).missing_keys
    torch.testing.assert_close(ours(tokens).logits, stock(tokens).logits, rtol=1e-5, atol=2e-6)


def test_it_centres_and_spreads(create, tokens):
    centred = create("cape", **MASKED).config
    assert centred.mean_normalize is True
    assert centred.spread is True
    moved = create("cape", **MASKED)(tokens, position_ids=torch.arange(13)[None] + 100).logits
    torch.testing.assert_close(moved, create("cape", **MASKED)(tokens).logits, **CLOSE)


@pytest.mark.parametrize(
    "auto", ["AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification"]
)
def test_other_heads_have_positions_too(create, tokens, auto):
    model = create("cape_rope", "cape_eurobert", auto)
    assert any("variant_cape_rope" in key for key in model.state_dict())
    model(tokens)
