"""What a variant may do inside self-attention; fairseq's layers know none by name."""

import copy
import dataclasses

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.modules import MultiheadAttention

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings, CurrentPositions, PositionalAttention
from cape_plugins.augment import AsGiven, Cape
from cape_plugins.fairseq.layers import PositionalMultiheadAttention

PAD, EOS = 1, 2
DIM, HEADS, T, B = 16, 2, 7, 3
SOURCE = torch.tensor([[5, 6, 7, 8, 9, EOS], [8, 9, 5, 4, 5, EOS]])
TARGET = torch.tensor([[EOS, 10, 11, 12, 13, 14], [EOS, 14, 15, 16, 17, 18]])


class Everything(PositionalAttention):
    """Rotates queries and keys, prefers near keys, adds to the output: all by positions."""

    learns_values = True

    def __init__(self, settings):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.linspace(0.5, 1.0, settings.heads))
        self.values = torch.nn.Parameter(torch.randn(settings.head_dim))
        self.seen = []

    def place(self, x, positions):
        self.seen.append(positions)
        angle = positions.nan_to_num()[:, None, :, None]
        first, second = x.chunk(2, dim=-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)

    def logits(self, query, keys, positions):
        assert positions.shape[1] == keys
        positions = positions.nan_to_num()
        distance = positions[:, -query.shape[2] :, None] - positions[:, None, :]
        return -self.slope[:, None, None] * distance.abs()[:, None]

    def mix(self, weights):
        return weights.square().sum(dim=-1, keepdim=True) * self.values


@pytest.fixture
def slot(monkeypatch):
    """Put it where relpos is; without relpos' options it takes those that are given."""

    def put(*options, first_layer_only=False, augment=AsGiven):
        row = dataclasses.replace(
            variants.VARIANTS["relpos"],
            attention=Everything,
            augment=augment,
            first_layer_only=first_layer_only,
            options=frozenset(options),
        )
        monkeypatch.setitem(variants.VARIANTS, "relpos", row)

    return put


@pytest.mark.parametrize("reordered", [False, True])
def test_step_by_step_decoding_equals_full_decoding(
    build, slot, assert_decodes_step_by_step, reordered
):
    slot()
    assert_decodes_step_by_step(build("relpos"), reordered=reordered)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_sentence_gives_what_it_gives_alone(build, slot, side):
    slot()
    model = build("relpos")
    padding, alone = torch.full((1, 3), PAD), torch.tensor([[5, 6, EOS]])
    columns = (padding, alone) if side == "left" else (alone, padding)
    batch = torch.cat([torch.cat(columns, dim=1), SOURCE[:1]])
    together = model(batch, None, TARGET[:1].expand(2, -1))[0]
    torch.testing.assert_close(together[:1], model(alone, None, TARGET[:1])[0], rtol=0, atol=1e-5)


def test_it_sees_source_tokens_after_bos_at_multiples_of_the_source_scale(build, slot):
    slot("source_scale")
    model = build("relpos", source_scale=1.25)
    model(torch.tensor([[PAD, 5, 6, EOS]]), None, TARGET[:1, :3])
    nan = float("nan")
    expected = torch.tensor([[nan, 0, 1.25, 2.5, 3.75]])
    for found in model.encoder.layers[0].self_attn.relative.seen:
        torch.testing.assert_close(found, expected, equal_nan=True)
    for found in model.decoder.layers[1].self_attn.relative.seen:
        torch.testing.assert_close(found, torch.arange(3.0)[None])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_all_layers_of_both_sides_see_positions_of_one_draw(build, slot, checkpoint):
    slot("max_global_shift", "max_local_shift", "max_global_scale", augment=Cape)
    given = dict(max_local_shift=0.0, max_global_scale=2.0, checkpoint_activations=checkpoint)
    model = build("relpos", train=True, **given)
    model(SOURCE, None, TARGET)[0].sum().backward()
    layers = [*model.encoder.layers, *model.decoder.layers]
    seen = [positions for layer in layers for positions in layer.self_attn.relative.seen]
    assert len(seen) == 8 * (1 + checkpoint)  # queries and keys of two layers on either side
    for positions in seen:
        torch.testing.assert_close(positions, seen[0], rtol=0, atol=0)
    scale = seen[0].diff(dim=1)  # λ of each sentence pair
    torch.testing.assert_close(scale, scale[:, :1].expand(-1, 5))
    assert 0.5 < scale[0, 0] != scale[1, 0] < 2
    assert not torch.allclose(seen[0][0, 0] / scale[0, 0], seen[0][1, 0] / scale[1, 0])  # Δ
    model.eval()(SOURCE, None, TARGET)
    for layer in layers:
        last = layer.self_attn.relative.seen[-1]
        assert torch.equal(last, torch.arange(6.0).expand_as(last))


@pytest.mark.parametrize(("first_layer_only", "expected"), [(False, [0, 1]), (True, [0])])
def test_it_sits_in_the_layers_that_the_table_says(build, slot, first_layer_only, expected):
    slot(first_layer_only=first_layer_only)
    model = build("relpos")
    for side in (model.encoder, model.decoder):
        found = [hasattr(layer.self_attn, "relative") for layer in side.layers]
        assert [i for i, there in enumerate(found) if there] == expected


def test_activation_checkpointing_finds_the_positions_in_the_backward(build, slot):
    slot()
    gradients = []
    for checkpoint in (False, True):
        model = build("relpos", train=True, checkpoint_activations=checkpoint)
        model(SOURCE, None, TARGET)[0].square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-4, atol=1e-4)


def test_a_half_precision_model_attends_by_float32_positions(build, slot):
    slot()
    model = build("relpos", train=True).bfloat16()
    out = model(SOURCE, None, TARGET)[0]
    assert out.dtype == torch.bfloat16
    assert model.encoder.layers[0].self_attn.relative.seen[0].dtype == torch.float32


@pytest.mark.parametrize("learns_values", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_attends_as_the_core_does(monkeypatch, learns_values, need_weights, causal):
    monkeypatch.setattr(Everything, "learns_values", learns_values)
    torch.manual_seed(0)
    attention, current = (
        Everything(AttentionSettings(DIM // HEADS, HEADS, 1, False)),
        CurrentPositions(),
    )
    ours = PositionalMultiheadAttention(DIM, HEADS, attention, current).eval()
    x = torch.randn(T, B, DIM)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[0, 5:] = True
    current.positions = (1.5 * torch.arange(float(T))).masked_fill(padding, float("nan"))
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) & causal
    mask = torch.zeros(T, T).masked_fill(hidden, -torch.inf) if causal else None
    found, _ = ours(x, x, x, padding, attn_mask=mask, need_weights=need_weights)
    q, k, v = (
        project(x).view(T, B, HEADS, -1).permute(1, 2, 0, 3)
        for project in (ours.q_proj, ours.k_proj, ours.v_proj)
    )
    seen = ~(hidden | padding[:, None, None])
    expected = attention(q, k, v, current.positions, seen).permute(2, 0, 1, 3).flatten(2)
    torch.testing.assert_close(found, ours.out_proj(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_variant_that_does_nothing_is_the_attention_of_fairseq(need_weights, causal, padded):
    torch.manual_seed(0)
    ours = PositionalMultiheadAttention(DIM, HEADS, PositionalAttention(), CurrentPositions())
    stock = MultiheadAttention(DIM, HEADS, self_attention=True).eval()
    stock.load_state_dict(ours.eval().state_dict())
    x = torch.randn(T, B, DIM)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[0, 5:] = True
    mask = torch.full((T, T), -torch.inf).triu(1) if causal else None
    given = dict(attn_mask=mask, need_weights=need_weights)
    torch.testing.assert_close(
        ours(x, x, x, padding if padded else None, **given),
        stock(x, x, x, padding if padded else None, **given),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_copy_of_the_model_has_positions_of_its_own(build, slot):
    slot()
    model = build("relpos")
    expected = model(SOURCE, None, TARGET)[0]
    twin = copy.deepcopy(model)
    model(SOURCE[:, :2], None, TARGET[:, :2])
    torch.testing.assert_close(twin(SOURCE, None, TARGET)[0], expected)
    assert twin.encoder.layers[0].self_attn.current is twin.encoder.current
    assert twin.encoder.current is not model.encoder.current
