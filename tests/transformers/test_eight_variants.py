"""Encodings of the literature, written outside: which a decoder takes, and what it refuses."""

import pytest
import torch
from transformers import DynamicCache

from cape_support import EIGHT, replica

CLOSE = dict(rtol=1e-4, atol=2e-5)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("pos", [pos for pos in EIGHT if pos != "conditional"])
@torch.no_grad()
def test_steps_with_a_cache_are_the_whole_forward(eight, create, tokens, pos):
    """They are registered long after the fields of configurations were made."""
    model = create(pos, num_key_value_heads=4)
    cache = DynamicCache(config=model.config)
    steps = [
        model(tokens[:, start:stop], past_key_values=cache, use_cache=True).logits
        for start, stop in ((0, 7), (7, 8), (8, 13))
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens).logits, **CLOSE)


@torch.no_grad()
def test_their_options_are_fields_too(eight, create, tokens, tmp_path):
    model = create("rotations", num_key_value_heads=4, rotations_first=3.0)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.model.positions.options["rotations_first"] == 3.0
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    with pytest.raises(ValueError, match="rotations_first"):
        create("alibi", rotations_first=3.0)


def test_what_depends_on_other_tokens_is_refused_in_a_decoder_and_an_encoder_has_it(
    eight, create, tokens
):
    with pytest.raises(ValueError, match=r"conditional.*encoder"):
        create("conditional")
    model = create("conditional", "cape_eurobert", "AutoModelForMaskedLM")
    mask = torch.ones_like(tokens)
    mask[0, 9:] = 0
    padded, alone = model(tokens, attention_mask=mask).logits, model(tokens[:1, :9]).logits
    torch.testing.assert_close(padded[:1, :9], alone, **CLOSE)


def test_rotations_of_each_head_are_refused_where_keys_have_fewer_heads(eight, create):
    with pytest.raises(ValueError, match="num_key_value_heads=4"):
        create("rotations", num_key_value_heads=2)


def test_a_module_of_all_layers_is_refused_in_a_replica_of_data_parallel(eight, create, tokens):
    """Its first layer alone has a copy; the others would read and train the original."""
    copy = replica(create("t5_shared", num_key_value_heads=4))
    with pytest.raises(ValueError, match="DataParallel"):
        copy(tokens)
    copy = replica(create("t5", num_key_value_heads=4))
    assert copy(tokens).logits.shape == (2, 13, 97)
