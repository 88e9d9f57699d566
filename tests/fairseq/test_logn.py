"""--attention-logn beside every --pos: N are the tokens that a query sees."""

import math

import pytest
import torch

pytest.importorskip("fairseq")

from cape_plugins.attention import CurrentPositions, PositionalAttention
from cape_plugins.fairseq.config import CapeTransformerConfig, check_options
from cape_plugins.fairseq.layers import PositionalMultiheadAttention
from cape_plugins.variants import names

PAD, EOS = 1, 2
SOURCE = torch.tensor([[5, 6, 7, 8, 9, EOS], [8, 9, 5, 4, 5, EOS]])
TARGET = torch.tensor([[EOS, 10, 11, 12, 13, 14], [EOS, 14, 15, 16, 17, 18]])


@pytest.mark.parametrize("pos", names(1))
def test_step_by_step_decoding_equals_full_decoding_and_follows_the_beam(build, pos):
    model = build(pos, attention_logn=3)
    encoder_out = model.encoder(SOURCE[:1].expand(2, -1))  # two hypotheses of one sentence
    full = model.decoder(TARGET, encoder_out=encoder_out)[0]
    state = {}
    for step in range(1, TARGET.shape[1]):
        last = model.decoder(TARGET[:, :step], encoder_out=encoder_out, incremental_state=state)[0]
        torch.testing.assert_close(last[:, 0], full[:, step - 1], rtol=0, atol=1e-5)
    swap = torch.tensor([1, 0])
    model.decoder.reorder_incremental_state_scripting(state, swap)
    last = model.decoder(TARGET[swap], encoder_out=encoder_out, incremental_state=state)[0]
    torch.testing.assert_close(last[:, 0], full[swap, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pos", names(1))
def test_a_padded_sentence_gives_what_it_gives_alone(build, pos, side):
    model = build(pos, attention_logn=3)
    padding, alone = torch.full((1, 3), PAD), torch.tensor([[5, 6, EOS]])
    columns = (padding, alone) if side == "left" else (alone, padding)
    batch = torch.cat([torch.cat(columns, dim=1), SOURCE[:1]])
    together = model(batch, None, TARGET[:1].expand(2, -1))[0]
    torch.testing.assert_close(together[:1], model(alone, None, TARGET[:1])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "one step"])
def test_the_scores_of_each_query_are_scaled_by_what_it_sees(need_weights, kind):
    torch.manual_seed(0)
    layers = []
    for _ in range(2):
        torch.manual_seed(1)
        layer = PositionalMultiheadAttention(8, 2, PositionalAttention(), CurrentPositions())
        layers.append(layer.eval())
    scaled, plain = layers
    scaled.relative.logn = 3
    x, padding = torch.randn(5, 2, 8), torch.zeros(2, 5, dtype=torch.bool)
    seen = torch.full((2, 5), 5.0)
    mask = None
    if kind == "decoder":
        mask = torch.full((5, 5), -torch.inf).triu(1)
        seen = torch.arange(1.0, 6).expand(2, 5)
    else:
        padding[1, 3:] = True
        seen[1] = 3
    state = {} if kind == "one step" else None
    found = scaled(x, x, x, padding, state, attn_mask=mask, need_weights=need_weights)[0]
    factor = (seen.log() / math.log(3)).T[..., None]
    project = plain.q_proj.forward
    plain.q_proj.forward = lambda query: project(query) * factor
    expected = plain(x, x, x, padding, attn_mask=mask, need_weights=need_weights)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_fit_with_and_without_and_the_output_is_another(build):
    plain, scaled = build("sinpos"), build("sinpos", attention_logn=3)
    scaled.load_state_dict(plain.state_dict())
    difference = scaled(SOURCE, None, TARGET)[0] - plain(SOURCE, None, TARGET)[0]
    assert difference.abs().max() > 1e-3


def test_cross_attention_is_fairseqs(build):
    layer = build("sinpos", attention_logn=3).decoder.layers[0]
    assert isinstance(layer.self_attn, PositionalMultiheadAttention)
    assert not isinstance(layer.encoder_attn, PositionalMultiheadAttention)


@pytest.mark.parametrize("value", [1, -5, True])
def test_what_is_no_number_of_tokens_is_refused(value):
    with pytest.raises(ValueError, match="attention_logn must be the number of tokens"):
        check_options({"pos": "nopos", "attention_logn": value}, CapeTransformerConfig())


def test_it_does_not_go_with_another_attention():
    given = {"pos": "nopos", "attention_logn": 30, "cross_self_attention": True}
    with pytest.raises(ValueError, match="--cross-self-attention does not go with --attention-log"):
        check_options(given, CapeTransformerConfig())
