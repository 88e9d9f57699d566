"""What a variant may do inside self-attention; fairseq's layers know none by name."""

from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.modules import MultiheadAttention

from cape_plugins import (
    AsGiven,
    Augmentation,
    Given,
    PositionalAttention,
    RelativePositions,
    Sizes,
    Variant,
    variants,
)
from cape_plugins.fairseq.layers import LAYER_POSITIONS, FairseqCapeAttention, during

PAD, EOS = 1, 2
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


@dataclass(eq=False, repr=False)
class Everything(PositionalAttention):
    """Rotates queries and keys and prefers near keys, by positions (1 or B, N, 1)."""

    def __post_init__(self):
        super().__post_init__()
        self.slope = torch.nn.Parameter(torch.linspace(0.5, 1.0, self.sizes.heads))
        self.seen = []

    def embed(self, x, prepared):
        self.seen.append(prepared[..., 0])
        angle = prepared.nan_to_num()[:, None]
        first, second = x.chunk(2, dim=-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x)

    def bias(self, query, keys, prepared):
        assert prepared.shape[1] == keys
        positions = prepared[..., 0].nan_to_num()
        distance = positions[:, -query.shape[2] :, None] - positions[:, None, :]
        return -self.slope[:, None, None] * distance.abs()[:, None]


@pytest.fixture
def put(monkeypatch):
    """Put it where relpos is."""
    get = variants.get

    def replace(augments=AsGiven):
        row = Variant(augments=augments, attends=Everything, axes=(1,))
        monkeypatch.setattr(variants, "get", lambda p, axes: row if p == "relpos" else get(p, axes))

    return replace


def attend(positional, **options):
    torch.manual_seed(0)
    module = FairseqCapeAttention(DIM, HEADS, positional=positional, **options).eval()
    for bias in (module.q_proj.bias, module.k_proj.bias, module.v_proj.bias, module.out_proj.bias):
        torch.nn.init.normal_(bias)  # fairseq's zeros would hide that two change places
    return module


@pytest.mark.parametrize("checkpoint", [False, True])
def test_all_layers_of_both_sides_see_positions_of_one_draw(build, put, checkpoint):
    put(Augmentation)
    given = dict(max_local_shift=0.0, max_global_scale=2.0, checkpoint_activations=checkpoint)
    model = build("relpos", train=True, **given)
    model(SOURCE, None, TARGET)[0].sum().backward()
    layers = [*model.encoder.layers, *model.decoder.layers]
    seen = [positions for layer in layers for positions in layer.self_attn.positional.seen]
    assert len(seen) == 8 * (1 + checkpoint)  # queries and keys of two layers on either side
    for positions in seen:
        torch.testing.assert_close(positions, seen[0], rtol=0, atol=0)
    scale = seen[0].diff(dim=1)  # λ of each sentence pair
    torch.testing.assert_close(scale, scale[:, :1].expand(-1, 5))
    assert 0.5 < scale[0, 0] != scale[1, 0] < 2
    assert not torch.allclose(seen[0][0, 0] / scale[0, 0], seen[0][1, 0] / scale[1, 0])  # Δ
    model.eval()(SOURCE, None, TARGET)
    for layer in layers:
        last = layer.self_attn.positional.seen[-1]
        assert torch.equal(last, torch.arange(6.0).expand_as(last))


def variant(kind):
    """A layer's attention, its parameters moved."""
    made = kind(SIZES, CONTEXT) if kind is RelativePositions else kind(SIZES)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return made


KINDS = [Everything, RelativePositions, PositionalAttention]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("handed", [False, True])
def test_it_attends_as_the_core_does(kind, causal, handed):
    """By masks that come with positions, and by fairseq's own where none come with them."""
    padding = PADDING & torch.tensor([True, not causal, True])[:, None]  # else a row sees nothing
    positions = (1.5 * torch.arange(float(T))).masked_fill(padding, float("nan"))[..., None]
    mask = ~(((CAUSAL < 0) & causal) | padding[:, None])
    ours = attend(variant(kind))
    given = ours.positional.prepare(positions, mask, X.dtype)
    theirs = dict(attn_mask=CAUSAL if causal and not handed else None)
    state = None if handed else {}
    with during(LAYER_POSITIONS, given if handed else Given(given.prepared)):
        found, _ = ours(X, X, X, padding, state, **theirs)
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
    given = dict(key_padding_mask=padding, attn_mask=CAUSAL if causal else None)
    expected = stock(X, X, X, need_weights=False, **given)[0]
    torch.testing.assert_close(ours(X, **given)[0], expected, rtol=1e-5, atol=1e-5)


def test_cross_attention_stays_fairseqs(build):
    layer = build("rope").decoder.layers[0]
    assert isinstance(layer.self_attn, FairseqCapeAttention)
    assert not isinstance(layer.encoder_attn, FairseqCapeAttention)


def test_another_self_attention_of_fairseq_does_not_go_with_a_variants(build):
    assert build("sinpos", cross_self_attention=True, no_cross_attention=True)
    with pytest.raises(ValueError, match=r"--cross-self-attention .*--pos relpos"):
        build("relpos", cross_self_attention=True, no_cross_attention=True)


def test_step_by_step_it_remembers_keys_and_their_padding():
    ours, state = attend(variant(RelativePositions)), {}
    steps = [ours(X[i : i + 1], None, None, PADDING[:, i : i + 1], state)[0] for i in range(T)]
    expected = ours(X, None, None, PADDING, attn_mask=CAUSAL)[0]
    torch.testing.assert_close(torch.cat(steps)[2:], expected[2:])  # before, row 1 sees nothing


def test_every_vector_within_reach_gets_a_gradient(build):
    model = build("relpos", train=True, relpos_context=2, quant_noise_pq=0.5)
    model(SOURCE, None, TARGET)[0].square().sum().backward()
    for side, ahead in ((model.encoder, True), (model.decoder, False)):
        reached = side.layers[0].self_attn.positional.keys.grad.abs().sum(dim=1) > 0
        assert reached.tolist() == [True, True, True, ahead, ahead]
