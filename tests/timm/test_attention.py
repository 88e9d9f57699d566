"""Positions in self-attention: of throw-away variants, and of rotary ones."""

from dataclasses import dataclass

import pytest
import torch
from timm.layers import Attention
from timm.layers.attention import AttentionRope
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from timm.models import group_parameters
from timm.models.vision_transformer import Block
from timm.utils import AttentionExtract
from torch import Tensor, nn

from cape_plugins import Added, Augmentation, Sinusoids, Sizes, Variant, patch_grid, variants
from cape_plugins.attention import NOTHING, Given, PositionalAttention
from cape_plugins.timm.attention import CapeAttention, CapeBlock
from cape_plugins.timm.registry import variants_by_name
from timm_support import HOSTS, STILL

ROPE = ["ropepos", "cape_rope"]


@dataclass(eq=False, repr=False)
class Distance(PositionalAttention):
    """As ALiBi: each head's logits fall with the distance; 0 where a token has no position."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slopes = nn.Parameter(torch.arange(1.0, self.sizes.heads + 1))
        self.seen: list[Tensor | None] = []

    def bias(self, query: Tensor, keys: int, prepared: Tensor | None) -> Tensor:
        self.seen.append(prepared)
        assert prepared is not None
        distance = (prepared[:, :, None] - prepared[:, None]).norm(dim=-1).nan_to_num(0.0)
        return -self.slopes[:, None, None] * distance[:, None]


@dataclass(eq=False, repr=False)
class LearnedSlope(Added):
    """Adds a learned vector × the coordinate along the height."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slope = nn.Parameter(torch.ones(self.sizes.dim))

    def embedding(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return positions[..., :1].nan_to_num(0.0) * self.slope


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """The variants of this file in the table."""
    rows = {
        "distance": Variant(attends=Distance),
        "both": Variant(Sinusoids, Augmentation, Distance),
        "idle": Variant(attends=PositionalAttention),
        "learned": Variant(adds=LearnedSlope),
    }
    for name, row in rows.items():
        monkeypatch.setitem(variants._TABLE[2], name, row)


def given_to(model: nn.Module, height: int, width: int, **masks) -> Given:
    """What the blocks get of an image of so many patches."""
    return model._embed(torch.zeros(1, height, width, model.embed_dim), **masks)[1]


def attend(model: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
    """What timm's own attention gives with the bias as its mask."""
    stock = Attention(32, 2, qkv_bias=True)
    stock.load_state_dict(model.blocks[0].attn.state_dict(), strict=False)
    return stock(x, attn_mask=bias)


def fuse(model: nn.Module, fused: bool) -> None:
    for block in model.blocks:
        block.attn.fused_attn = fused


# any variant


def test_a_row_of_the_table_is_a_model_by_name():
    assert variants_by_name()["distance"] == {"pos": "distance"}
    assert "abspos" not in variants_by_name()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("pos", ["nopos", "sinpos", "cape"])
def test_without_a_variant_there_the_blocks_are_timms(create, host, pos):
    model = create(pos, host)
    assert {type(block) for block in model.blocks} == {Block}
    assert {type(block.attn) for block in model.blocks} == {Attention}
    model = create(pos, host, attn_layer="diff", patch_drop_rate=0.5)
    assert model.blocks[0].attn.__class__.__name__ == "DiffAttention"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("attn_layer", [None, "", "attn", Attention])
def test_timms_defaults_may_be_given_by_name(create, host, attn_layer):
    model = create("alibi", host, block_fn=Block, attn_layer=attn_layer)
    assert {(type(one), type(one.attn)) for one in model.blocks} == {(CapeBlock, CapeAttention)}


def test_the_bias_is_the_variants_and_zero_for_the_class_token_and_joins_masks(create, images):
    model = create(pos="distance", reg_tokens=1).eval()
    attention, x = model.blocks[0].attn, images(2, 2 + 6, 32)
    given = given_to(model, 2, 3)
    bias = attention.positional.bias(x, 8, given.prepared)
    assert bias.shape == (1, 2, 8, 8)
    assert not bias[..., :2, :].any()
    assert not bias[..., :, :2].any()
    expected = torch.cdist(patch_grid(2, 3), patch_grid(2, 3))
    slopes = attention.positional.slopes[:, None, None]
    torch.testing.assert_close(bias[0, :, 2:, 2:], -slopes * expected)
    out = attention(x, given)
    torch.testing.assert_close(out, attend(model, x, bias))
    assert not torch.allclose(out, attend(model, x, 0 * bias), atol=1e-3)
    visible = torch.ones(8, 8).tril().bool()
    expected = attend(model, x, bias.masked_fill(~visible, -torch.inf))
    for masked in (dict(attn_mask=visible), dict(is_causal=True)):
        given = given_to(model, 2, 3, **masked)
        torch.testing.assert_close(attention(x, given), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("host", ["vit", "naflexvit", "naflexvit padded"])
def test_all_layers_see_the_positions_that_are_embedded(
    create, images, batch, embedded, host, checkpointing
):
    model = create("cape", host.split()[0], pos="both", extent=0.7)
    model.set_grad_checkpointing(checkpointing)
    x = batch() if host.endswith("padded") else images(2, 3, 64, 96)
    for training in (True, False):
        for block in model.blocks:
            block.attn.positional.seen.clear()
        model.train(training)(x).sum().backward()
        seen = [positions for block in model.blocks for positions in block.attn.positional.seen]
        assert len(seen) == 2 + 2 * checkpointing
        for positions in seen:
            n, exactly = model.num_prefix_tokens, dict(rtol=0, atol=0, equal_nan=True)
            assert positions[:, :n].isnan().all()
            torch.testing.assert_close(positions, embedded[-1], **exactly)
    torch.testing.assert_close(embedded[-1][0, n : n + 24], patch_grid(4, 6, extent=0.7))


@pytest.mark.parametrize("options", [{}, dict(qk_norm=True), dict(scale_attn_norm=True)])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_variant_that_does_nothing_is_timms_model(create, images, options, fused, is_causal):
    model, stock = (create(pos=pos, **options).eval() for pos in ("idle", "nopos"))
    stock.load_state_dict(dict(model.named_parameters()))
    x = images(2, 3, 32, 32)
    visible = (images(5, 5) > 0) | torch.eye(5, dtype=torch.bool)
    for attn_mask in (None, visible, images(5, 5)):
        outputs = []
        for each in (model, stock):
            fuse(each, fused)
            mask = None if is_causal else attn_mask
            outputs.append(each(x, attn_mask=mask, is_causal=is_causal))
        torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)


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


# rotary variants


@pytest.mark.parametrize("reg_tokens", [0, 2])
def test_a_layer_is_timms_rotary_attention_at_dinov3s_coordinates(create, images, reg_tokens):
    # DINOv3's centres end half a patch before the image's border: 7 of 8 at 8 patches
    model = create("ropepos", extent=7 / 8, reg_tokens=reg_tokens).eval()
    ours, x = model.blocks[0].attn, images(2, 1 + reg_tokens + 64, 32)
    stock = AttentionRope(32, 2, qkv_bias=True, num_prefix_tokens=1 + reg_tokens, rotate_half=True)
    stock.load_state_dict(ours.state_dict())
    rope = RotaryEmbeddingDinoV3(16, rotate_half=True).get_embed([8, 8])
    out = ours(x, given_to(model, 8, 8))
    torch.testing.assert_close(out, stock.eval()(x, rope=rope), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("host", HOSTS)
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


@pytest.mark.parametrize("variant", ROPE)
def test_the_extent_keeps_the_distances_of_patches_at_another_size(create, variant):
    small, tables = create(variant).eval(), []
    large = create(variant, extent=7 / 3).eval()  # 4 patches from -1 to 1, 8 from -7/3 to 7/3
    for model, side in ((small, 4), (large, 8)):
        x = torch.ones(1, 2, 1 + side**2, 16)
        table = given_to(model, side, side).prepared
        turned = model.blocks[0].attn.positional.embed(x, table)[:, :, 1:]
        scores = turned @ turned.mT  # all that matters is the distance
        tables.append(scores.unflatten(2, (side, -1)).unflatten(4, (side, -1)))
    near = tables[1][:, :, :4, :4, :4, :4]
    torch.testing.assert_close(tables[0], near, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("host", HOSTS)
def test_what_a_variant_learns_is_not_decayed_and_reaches_every_layer(create, images, host):
    model = create(host=host, pos="distance", global_pool="avg")
    names = {f"blocks.{layer}.attn.positional.slopes" for layer in range(2)}
    assert names <= model.no_weight_decay()
    model(images(2, 3, 64, 96)).square().sum().backward()
    parameters = dict(model.named_parameters())
    assert all(parameters[name].grad.any() for name in names)
    half = create(host=host, pos="distance", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_what_a_variant_learns_at_the_input_is_in_the_stem_and_travels(create, load, tmp_path):
    model = create(pos="learned")
    assert {"position.added.slope", "cls_pos_embed"} <= model.no_weight_decay()
    groups = group_parameters(model, model.group_matcher())
    (stem,) = (names for names in groups.values() if "cls_token" in names)
    assert "position.added.slope" in stem
    torch.save(model.state_dict(), tmp_path / "vit.pth")
    as_vit = dict(class_token=True, global_pool="token", reg_tokens=0, fc_norm=False)
    naflex = load(tmp_path / "vit.pth", host="naflexvit", pos="learned", **as_vit)
    assert torch.equal(naflex.embeds.position.added.slope, model.position.added.slope)
    assert "embeds.position.added.slope" in naflex.no_weight_decay()
