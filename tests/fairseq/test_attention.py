"""What a variant may do inside self-attention; fairseq's layers know none by name."""

from argparse import Namespace

import pytest
import torch
from fairseq.modules import MultiheadAttention

from cape_plugins import Alibi, PositionalAttention, RelativePositions, Sizes
from cape_plugins.attention import NOTHING
from cape_plugins.fairseq.layers import FairseqCapeAttention
from cape_plugins.rotary import Rotary

EOS = 2
DIM, HEADS, T, B, CONTEXT = 16, 2, 7, 3, 2
SOURCE = torch.tensor([[5, 6, 7, 8, 9, EOS], [8, 9, 5, 4, 5, EOS]])
TARGET = torch.tensor([[EOS, 10, 11, 12, 13, 14], [EOS, 14, 15, 16, 17, 18]])
SIZES = Sizes(dim=DIM, heads=HEADS)
# row 0 is padded on the right, row 1 on the left
PADDING = torch.zeros(B, T, dtype=torch.bool)
PADDING[0, 5:] = True
PADDING[1, :2] = True
CAUSAL = torch.full((T, T), -torch.inf).triu(1)
X = torch.randn(T, B, DIM, generator=torch.Generator().manual_seed(1))


def attend(positional):
    torch.manual_seed(0)
    module = FairseqCapeAttention(DIM, HEADS, positional=positional).eval()
    for bias in (module.q_proj.bias, module.k_proj.bias, module.v_proj.bias, module.out_proj.bias):
        torch.nn.init.normal_(bias)  # fairseq's zeros would hide that two change places
    return module


@pytest.mark.parametrize("checkpoint", [False, True])
def test_all_layers_of_both_sides_get_positions_of_one_draw(build, checkpoint):
    given = dict(max_local_shift=0.0, max_global_scale=2.0, checkpoint_activations=checkpoint)
    model, seen = build("cape_rope", train=True, **given), []
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.register_forward_pre_hook(
            lambda _, args, named: seen.append(named["given"].queries), with_kwargs=True
        )
    model(SOURCE, None, TARGET)[0].sum().backward()
    assert len(seen) == 4
    for rows in seen:
        torch.testing.assert_close(rows, seen[0], rtol=0, atol=0)
    assert not torch.allclose(seen[0][0], seen[0][1])  # λ of each sentence pair


def variant(kind):
    """A layer's attention, its parameters moved."""
    made = kind(SIZES, CONTEXT) if kind is RelativePositions else kind(SIZES)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return made


@pytest.mark.parametrize("kind", [Rotary, Alibi, RelativePositions])
@pytest.mark.parametrize("causal", [False, True])
def test_it_attends_as_the_core_does(kind, causal):
    padding = PADDING & torch.tensor([True, not causal, True])[:, None]  # else a row sees nothing
    positions = (1.5 * torch.arange(float(T))).masked_fill(padding, float("nan"))[..., None]
    mask = ~(((CAUSAL < 0) & causal) | padding[:, None])
    ours = attend(variant(kind))
    given = ours.positional.prepare(positions, positions, mask, X.dtype)
    found, _ = ours(X, X, X, (padding, given))
    q, k, v = (
        project(X).view(T, B, HEADS, -1).permute(1, 2, 0, 3)
        for project in (ours.q_proj, ours.k_proj, ours.v_proj)
    )
    expected, _ = ours.positional(q, k, v, given, need_weights=True)
    expected = ours.out_proj(expected.permute(2, 0, 1, 3).flatten(2))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_variant_that_does_nothing_is_the_attention_of_fairseq(causal):
    ours = attend(PositionalAttention(SIZES))
    stock = MultiheadAttention(DIM, HEADS, self_attention=True).eval()
    stock.load_state_dict(ours.state_dict())
    padding = PADDING & torch.tensor([True, not causal, True])[:, None]
    mask = CAUSAL if causal else None
    expected = stock(X, X, X, padding, need_weights=False, attn_mask=mask)[0]
    given = NOTHING.seeing(~padding[:, None, None], X.dtype).seeing(mask, X.dtype)
    found = ours(X, X, X, (padding, given))[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_cross_attention_stays_fairseqs(build):
    layer = build("rope").decoder.layers[0]
    assert isinstance(layer.self_attn, FairseqCapeAttention)
    assert not isinstance(layer.encoder_attn, FairseqCapeAttention)


def test_another_self_attention_of_fairseq_does_not_go_with_a_variants(build):
    assert build("sinpos", cross_self_attention=True, no_cross_attention=True)
    with pytest.raises(ValueError, match=r"--cross-self-attention .*--pos relpos"):
        build("relpos", cross_self_attention=True, no_cross_attention=True)


def test_step_by_step_it_remembers_keys_and_their_padding():
    ours, state, steps = attend(variant(RelativePositions)), {}, []
    where = torch.arange(float(T))[None, :, None]
    for i in range(T):
        given = ours.positional.prepare(where[:, i : i + 1], where[:, : i + 1], None, X.dtype)
        mask = PADDING[:, i : i + 1], given
        steps.append(ours(X[i : i + 1], None, None, mask, state)[0])
    mask = ~(PADDING[:, None] | (CAUSAL < 0))
    whole = ours.positional.prepare(where, where, mask, X.dtype)
    expected = ours(X, None, None, (None, whole))[0]
    torch.testing.assert_close(torch.cat(steps)[2:], expected[2:])  # before, row 1 sees nothing


def differs(model, *given) -> bool:
    """Whether two forwards of a model or a part of one give different outputs."""
    first, second = (model(*given) for _ in range(2))
    if isinstance(first, dict):  # an encoder's
        first, second = first["encoder_out"], second["encoder_out"]
    return not torch.equal(first[0], second[0])


@pytest.mark.parametrize("pos", ["rope", "relpos", "alibi"])
def test_attention_dropout_acts_in_training_and_with_retain_dropout_in_evaluation(build, pos):
    model = build(pos, attention_dropout=0.5, no_cross_attention=True)
    sides = (model.encoder, (SOURCE, None)), (model.decoder, (TARGET,))
    for side, given in sides:
        assert differs(side.train(), *given)
        assert not differs(side.eval(), *given)
        without = build(pos, no_cross_attention=True).train()
        assert not differs(without.encoder if side is model.encoder else without.decoder, *given)
    generation = Namespace(retain_dropout=True, retain_dropout_modules=None)
    model.eval().prepare_for_inference_(Namespace(generation=generation))
    for side, given in sides:
        assert differs(side, *given)


@pytest.mark.parametrize("pos", ["cape", "rope", "relpos", "alibi"])
def test_full_context_alignment_sees_later_targets_and_else_none_does(build, pos):
    model = build(pos)
    other = TARGET.clone()
    other[:, -1] += 1
    encoded = model.encoder(SOURCE, None)
    for whole in (False, True):
        one, two = (
            model.decoder(target, encoded, full_context_alignment=whole)[0][:, :-1]
            for target in (TARGET, other)
        )
        assert torch.equal(one, two) != whole
