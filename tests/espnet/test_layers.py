"""Layers that are dropped or wrapped, and what is read between them: layer drop, intermediate CTC.

ESPnet's own TransformerEncoder and TransformerDecoder take ``layer_drop_rate`` and ignore it.
"""

import copy
import functools

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.utils.get_default_kwargs import get_default_kwargs
from torch import nn
from torch.utils.checkpoint import checkpoint

from cape_plugins import Given, Variant
from cape_plugins.attention import merge
from cape_plugins.espnet.attention import CapeMultiHeadedAttention
from cape_plugins.espnet.transformer import LayerDropTransformerDecoder
from cape_plugins.variants import TABLE, Registered
from cape_support import AlibiFirst, seeded
from espnet_support import assert_alone, batch, make

either = pytest.mark.parametrize("side", ["encoder", "decoder"])
both_norms = pytest.mark.parametrize("normalize_before", [True, False])


def decoder_of(kind=LayerDropTransformerDecoder, **options):
    torch.manual_seed(0)
    quiet = dict(dropout_rate=0.0, positional_dropout_rate=0.0, use_flash_attn=False)
    decoder = kind(7, 16, **dict(attention_heads=2, linear_units=32, **quiet) | options)
    for parameter in decoder.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return decoder


def dropping(side: str, **options):
    """Our Transformer, in training."""
    return (decoder_of(**options) if side == "decoder" else make(pos="sinpos", **options)).train()


def inputs(side: str) -> tuple[torch.Tensor, ...]:
    """What a side of the Transformer is called with; each row of the batch is the same."""
    memory = torch.randn(1, 9, 16, generator=seeded(1))
    both = memory, torch.tensor([9]), torch.tensor([[6, 2, 3, 4]]), torch.tensor([4])
    given = batch(9) if side == "encoder" else both
    return tuple(each.expand(3, *each.shape[1:]) for each in given)


def norms_alone(model, given) -> torch.Tensor:
    """What is left of a model of one layer that is dropped."""
    seen = []
    layers = model.encoders if hasattr(model, "encoders") else model.decoders
    hook = layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(*given)
    hook.remove()
    x = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    names = ("norm_mha", "norm_ff", "norm1", "norm2", "norm3")  # as they run
    norms = [getattr(layers[0], name) for name in names if hasattr(layers[0], name)]
    for norm in [model.after_norm] if layers[0].normalize_before else norms:
        x = norm(x)
    return model.output_layer(x) if hasattr(model, "output_layer") else x


# --- layer drop


@both_norms
@either
def test_as_many_layers_are_dropped_as_the_rate_says_and_only_norms_are_left(
    side, normalize_before
):
    options = dict(num_blocks=1, layer_drop_rate=0.4, normalize_before=normalize_before)
    model, given = dropping(side, **options), inputs(side)
    with torch.no_grad():
        dropped, kept = norms_alone(model, given), model.eval()(*given)[0]
        model.train()
        outs = [model(*given)[0] for _ in range(600)]
    assert not torch.allclose(kept, dropped, atol=1e-3)
    drops = sum(torch.allclose(out, dropped, atol=1e-6) for out in outs)
    assert sum(torch.allclose(out, kept, atol=1e-5) for out in outs) == 600 - drops
    assert 240 - 48 <= drops <= 240 + 48  # 4 standard deviations


@either
def test_each_layer_is_drawn_for_itself_and_the_whole_batch_at_once_by_the_seed(side):
    model, given = copy.deepcopy(dropping(side, num_blocks=2, layer_drop_rate=0.5)), inputs(side)
    different: list[torch.Tensor] = []
    for seed in range(60):
        torch.manual_seed(seed)
        out = model(*given)[0].detach()
        torch.testing.assert_close(out, out[:1].expand_as(out))
        if not any(torch.allclose(out, other, atol=1e-4) for other in different):
            different.append(out)
    torch.manual_seed(seed)
    assert model(*given)[0].equal(out)
    assert len(different) == 4  # both kept, either one, none


@both_norms
@either
def test_a_dropped_layer_gets_gradients_of_zero_rather_than_none(side, normalize_before):
    options = dict(num_blocks=1, layer_drop_rate=0.999999, normalize_before=normalize_before)
    model = dropping(side, **options)
    out = model(*inputs(side))[0]
    (out * torch.randn(out.shape)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    layer = model.encoders[0] if side == "encoder" else model.decoders[0]
    for name, part in layer.named_children():
        alive = [p for p in part.parameters() if p.grad.any()]
        assert bool(alive) is ("norm" in name and not normalize_before), name


@pytest.mark.parametrize("rate", [0.0, 0.9])
def test_evaluation_of_the_decoder_is_espnets_with_the_same_checkpoint(rate):
    ours, theirs = decoder_of(layer_drop_rate=rate).eval(), decoder_of(TransformerDecoder).eval()
    ours.load_state_dict(theirs.state_dict())
    memory, _, tokens, _ = inputs("decoder")
    given = memory, torch.tensor([9, 7, 9]), tokens, torch.tensor([4, 3, 1])
    assert ours(*given)[0].equal(theirs(*given)[0])
    step = (tokens[:1, :1], None, memory[:1])
    assert ours.forward_one_step(*step)[0].equal(theirs.forward_one_step(*step)[0])


def test_options_of_the_decoder_are_espnets_and_what_cannot_work_is_refused():
    assert get_default_kwargs(LayerDropTransformerDecoder) == get_default_kwargs(TransformerDecoder)
    with pytest.raises(ValueError, match="layer_drop_rate"):
        decoder_of(layer_drop_rate=1.0)
    with pytest.raises(ValueError, match="concat_after"):
        decoder_of(layer_drop_rate=0.2, concat_after=True)


@pytest.mark.parametrize(
    ("name", "options", "espnets"),
    [
        ("cape_e_branchformer", {"pos": "relpos"}, True),
        *((name, {"layer_drop_rate": 0.5}, False) for name in ("cape_transformer", "decoder")),
    ],
)
def test_recomputation_gives_the_same_gradients_by_espnets_option_and_past_hooks(
    name, options, espnets
):
    def gradients(recompute: bool) -> list[torch.Tensor]:
        more = {"gradient_checkpoint_layers": [0, 1, 2]} if recompute and espnets else {}
        if name == "decoder":
            model, given = decoder_of(num_blocks=3, **options).train(), inputs("decoder")
        else:
            model, given = make(name, num_blocks=3, **options, **more).train(), batch(50, 31)
        layers = model.decoders if name == "decoder" else model.encoders
        for layer in layers if recompute and not espnets else ():
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
        for seed in range(3):
            torch.manual_seed(seed)
            model(*given)[0].square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    for plain, recomputed in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(recomputed, plain)


# --- intermediate CTC, with ESPnet's own CTC and ASR model


@pytest.mark.parametrize("pos", ["cape", "relpos_first", "espnet_rel_pos"])
@pytest.mark.parametrize("name", ["cape_transformer", "cape_conformer", "cape_e_branchformer"])
def test_intermediate_ctc_conditions_the_layers_above(name, pos):
    options = dict(interctc_layer_idx=[1, 2], interctc_use_conditioning=True)
    encoder = make(name, pos, num_blocks=3, **options).eval()
    encoder.conditioning_layer = nn.Linear(5, 16)  # as ESPnet's model does
    ctc = CTC(odim=5, encoder_output_size=16)
    features, lengths = batch(163, 120, 40)
    assert_alone(encoder, features, lengths, ctc=ctc)
    (out, inside), _, _ = encoder(features, lengths, ctc=ctc)
    assert [number for number, _ in inside] == [1, 2]
    plain = make(name, pos, num_blocks=3).eval()
    assert not torch.allclose(out, plain(features, lengths)[0], atol=1e-3)
    (out * torch.randn(out.shape)).sum().backward()
    learned = [*encoder.parameters(), *ctc.parameters()]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned)
    assert encoder.conditioning_layer.weight.grad.any()
    assert ctc.ctc_lo.weight.grad.any()


@pytest.mark.parametrize("name", ["cape_transformer", "cape_e_branchformer"])
def test_a_bias_of_the_first_layer_alone_is_not_in_the_others(name, monkeypatch):
    """Which is prepared once for all layers, and reaches each with the mask in it."""
    row = Registered(Variant(attends=AlibiFirst), "cape_plugins")
    monkeypatch.setitem(TABLE[1], "alibi_first", row)
    encoder, seen = make(name, "alibi_first").eval(), []
    for layer in encoder.encoders:
        (attention,) = (m for m in layer.modules() if isinstance(m, CapeMultiHeadedAttention))
        attention.register_forward_pre_hook(lambda one, given: seen.append((one, *given)))
    encoder(*batch(61, 40))
    for attention, x, _, _, given, mask in [*seen]:
        assert given.bias is not None
        found = attention(x, x, x, given, mask)
        other = attention(x, x.masked_fill(~mask.mT, 9.0), x, given, mask)
        torch.testing.assert_close(other, found)  # padding is hidden
        hides = mask[:, None]
        plain = Given(mask=hides, bias=merge(torch.zeros(1), hides, x.dtype))
        acts = not torch.allclose(attention(x, x, x, plain, mask), found, atol=1e-4)
        assert acts == (attention is seen[0][0])
