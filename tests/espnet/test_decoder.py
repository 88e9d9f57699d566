"""``decoder: cape_transformer`` is ESPnet's, and drops layers: ESPnet's own ignores the rate."""

import copy

import pytest
import torch

pytest.importorskip("espnet2")

from espnet2.asr.decoder.transformer_decoder import TransformerDecoder

from cape_plugins.espnet.decoder import CapeTransformerDecoder


def make(kind=CapeTransformerDecoder, **options):
    torch.manual_seed(0)
    quiet = dict(dropout_rate=0.0, positional_dropout_rate=0.0, use_flash_attn=False)
    sizes = dict(attention_heads=2, linear_units=32, num_blocks=1)
    return kind(7, 16, **{**quiet, **sizes, **options})


def batch() -> tuple[torch.Tensor, ...]:
    memory = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[6, 2, 3, 4], [6, 5, 2, 0]])
    return memory, torch.tensor([9, 7]), tokens, torch.tensor([4, 3])


@pytest.mark.parametrize("normalize_before", [True, False])
def test_as_many_layers_are_dropped_as_the_rate_says_and_only_norms_are_left(normalize_before):
    decoder = make(layer_drop_rate=0.4, normalize_before=normalize_before)
    inputs = batch()
    with torch.no_grad():
        x = decoder.embed(inputs[2])
        layer = decoder.decoders[0]
        norms = (layer.norm1, layer.norm2, layer.norm3)
        for norm in (decoder.after_norm,) if normalize_before else norms:
            x = norm(x)
        dropped, kept = decoder.output_layer(x), decoder.eval()(*inputs)[0]
        decoder.train()
        outs = [decoder(*inputs)[0] for _ in range(600)]
    assert not torch.allclose(kept, dropped, atol=1e-3)
    drops = sum(out.equal(dropped) for out in outs)
    assert sum(torch.allclose(out, kept, atol=1e-5) for out in outs) == 600 - drops
    assert 240 - 48 <= drops <= 240 + 48  # 4 standard deviations


def test_each_layer_is_drawn_for_itself_in_copies_too():
    decoder = copy.deepcopy(make(num_blocks=2, layer_drop_rate=0.5))
    different = []
    with torch.no_grad():
        for _ in range(60):
            out, _ = decoder(*batch())
            if not any(torch.allclose(out, other, atol=1e-4) for other in different):
                different.append(out)
    assert len(different) == 4  # both kept, either one, none


def test_dropped_layers_get_gradients_of_zero_rather_than_none():
    decoder = make(layer_drop_rate=0.999999)
    decoder(*batch())[0].square().sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())
    assert not any(p.grad.any() for p in decoder.decoders[0].src_attn.parameters())


@pytest.mark.parametrize("rate", [0.0, 0.9])
def test_evaluation_is_espnets_with_the_same_checkpoint(rate):
    ours, theirs = make(num_blocks=2, layer_drop_rate=rate), make(TransformerDecoder, num_blocks=2)
    ours.load_state_dict(theirs.state_dict())
    inputs = batch()
    assert ours.eval()(*inputs)[0].equal(theirs.eval()(*inputs)[0])
    step = (inputs[2][:1, :1], None, inputs[0][:1])
    assert ours.forward_one_step(*step)[0].equal(theirs.forward_one_step(*step)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_drop_rate": 1.0}, r"layer_drop_rate must be a number in \[0, 1\), got 1.0"),
        ({"layer_drop_rate": 0.2, "concat_after": True}, "needs concat_after: false"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_its_options_are_those_of_espnets():
    from espnet2.utils.get_default_kwargs import get_default_kwargs

    assert get_default_kwargs(CapeTransformerDecoder) == get_default_kwargs(TransformerDecoder)
