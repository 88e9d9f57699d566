"""Positions in the self-attention of timm's blocks: learned ones, biases and rotations."""

import pytest
import torch
from timm.layers import Attention
from timm.layers.attention import AttentionRope
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from timm.models.vision_transformer import Block
from timm.utils import AttentionExtract
from torch import Tensor, nn

from cape_plugins import Sizes, patch_grid
from cape_plugins.alibi import alibi_slopes
from cape_plugins.attention import NOTHING, PositionalAttention
from cape_plugins.timm.attention import CapeAttention, CapeBlock
from timm_support import HOSTS, STILL, into_blocks

every_host = pytest.mark.parametrize("host", HOSTS)


def attend(model: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
    """What timm's own attention gives with the bias as its mask."""
    stock = Attention(32, 2, qkv_bias=True)
    stock.load_state_dict(model.blocks[0].attn.state_dict(), strict=False)
    return stock(x, attn_mask=bias)


def fuse(model: nn.Module, fused: bool) -> None:
    for block in model.blocks:
        block.attn.fused_attn = fused


# any variant


@every_host
@pytest.mark.parametrize("pos", ["nopos", "cape"])
def test_without_a_variant_there_the_blocks_are_timms(create, host, pos):
    model = create(pos, host)
    assert {type(block) for block in model.blocks} == {Block}
    assert {type(block.attn) for block in model.blocks} == {Attention}
    model = create(pos, host, attn_layer="diff", patch_drop_rate=0.5)
    assert model.blocks[0].attn.__class__.__name__ == "DiffAttention"


@every_host
def test_timms_defaults_may_be_given_by_name(create, host):
    for attn_layer in (None, "", "attn", Attention):
        model = create("alibi", host, block_fn=Block, attn_layer=attn_layer)
        assert {(type(one), type(one.attn)) for one in model.blocks} == {(CapeBlock, CapeAttention)}


def test_alibis_bias_is_zero_for_tokens_without_a_position_and_joins_masks(create, images):
    model, x = create("alibi", reg_tokens=1).eval(), images(2, 2 + 6, 32)
    attention, image = model.blocks[0].attn, images(1, 3, 32, 48)  # 2 × 3 patches
    apart = torch.zeros(8, 8)
    apart[2:, 2:] = torch.cdist(patch_grid(2, 3), patch_grid(2, 3)) * 13 / 2  # 14 in training
    bias = -alibi_slopes(2)[:, None, None] * apart
    out = attention(x, into_blocks(model, image)[1])
    torch.testing.assert_close(out, attend(model, x, bias[None]))
    assert not torch.allclose(out, attend(model, x, 0 * bias), atol=1e-3)
    visible = torch.ones(8, 8).tril().bool()
    expected = attend(model, x, bias.masked_fill(~visible, -torch.inf))
    for masked in (dict(attn_mask=visible), dict(is_causal=True)):
        _, given = into_blocks(model, image, **masked)
        torch.testing.assert_close(attention(x, given), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("host", ["vit", "naflexvit", "naflexvit padded"])
def test_all_layers_get_what_is_made_once(create, images, batch, host, checkpointing):
    model, padded, seen = create("cape_rope", host.split()[0]), host.endswith("padded"), []
    model.set_grad_checkpointing(checkpointing)
    for block in model.blocks:
        block.attn.positional.register_forward_pre_hook(lambda _, given: seen.append(given[3]))
    model.train()(batch() if padded else images(2, 3, 64, 96)).sum().backward()
    assert len(seen) == 2 + 2 * checkpointing
    first = seen[0]
    assert all(torch.equal(given.queries, first.queries) for given in seen)
    assert not torch.equal(first.queries[0], first.queries[1])  # each image has its draw
    assert (first.mask is not None) == padded


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_gate_and_norms_are_timms(images, fused):
    given = dict(gated=True, qk_norm=True, norm_layer=nn.LayerNorm)
    attention, stock = CapeAttention(16, 2, **given), Attention(16, 2, **given)
    for parameter in attention.parameters():  # fresh norms are alike
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    stock.load_state_dict(attention.state_dict())
    attention.positional = PositionalAttention(Sizes(dim=16, heads=2))
    attention.fused_attn = stock.fused_attn = fused
    x = images(2, 5, 16)
    torch.testing.assert_close(attention(x, NOTHING), stock(x))
    attention.attn_drop.p = 0.5
    assert not torch.equal(attention(x, NOTHING), attention(x, NOTHING))
    assert torch.equal(attention.eval()(x, NOTHING), attention(x, NOTHING))


def test_timms_attention_extract_finds_the_weights(create, images):
    model = create("alibi").eval()
    fuse(model, False)  # as for timm's attention
    found = AttentionExtract(model, method="hook")(images(1, 3, 32, 32))
    assert [weights.shape for weights in found.values()] == [(1, 2, 5, 5)] * 2
    for weights in found.values():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2, 5))


def test_blocks_without_positions_are_an_error(create, images):
    with pytest.raises(TypeError, match="rope"):
        create("alibi").blocks(images(1, 5, 32))


@every_host
def test_of_what_a_variant_learns_matrices_alone_are_decayed_and_all_reaches_every_layer(
    create, images, host
):
    model = create("fire", host, global_pool="avg")
    names = {name for name, _ in model.named_parameters() if "attn.positional." in name}
    assert {name.split(".")[1] for name in names} == {"0", "1"}
    free = names & model.no_weight_decay()
    assert {name.split("positional.")[1] for name in names - free} == {
        "function.0.weight",
        "function.2.weight",
    }
    model(images(2, 3, 64, 96)).square().sum().backward()
    parameters = dict(model.named_parameters())
    assert all(parameters[name].grad.any() for name in names)
    half = create("fire", host, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


# rotary variants


@pytest.mark.parametrize("reg_tokens", [0, 2])
def test_a_layer_is_timms_rotary_attention_at_dinov3s_coordinates(create, images, reg_tokens):
    # DINOv3's centres end half a patch before the image's border: 7 of 8 at 8 patches
    model = create("ropepos", extent=7 / 8, reg_tokens=reg_tokens).eval()
    ours, x = model.blocks[0].attn, images(2, 1 + reg_tokens + 64, 32)
    stock = AttentionRope(32, 2, qkv_bias=True, num_prefix_tokens=1 + reg_tokens, rotate_half=True)
    stock.load_state_dict(ours.state_dict())
    rope = RotaryEmbeddingDinoV3(16, rotate_half=True).get_embed([8, 8])
    out = ours(x, into_blocks(model, images(1, 3, 128, 128))[1])
    torch.testing.assert_close(out, stock.eval()(x, rope=rope), rtol=1e-5, atol=1e-5)


@every_host
@pytest.mark.parametrize(
    ("option", "prefix", "acts"),
    [
        (dict(max_global_shift=0.5), dict(class_token=False, reg_tokens=0), False),
        (dict(max_global_shift=0.5), dict(class_token=True, reg_tokens=0), True),
        (dict(max_global_shift=0.5), dict(class_token=False, reg_tokens=1), True),
        (dict(max_local_shift=0.1), dict(class_token=False, reg_tokens=0), True),
        (dict(max_global_scale=1.4), dict(class_token=False, reg_tokens=0), True),
    ],
)
def test_a_global_shift_acts_only_against_tokens_without_a_position(
    create, images, host, option, prefix, acts
):
    model = create("cape_rope", host, global_pool="avg", **prefix, **{**STILL, **option})
    x = images(2, 3, 64, 96)
    same = torch.allclose(model.train()(x), model.eval()(x), atol=1e-3, rtol=1e-3)
    assert same == (not acts)
