"""The slot in self-attention, with throw-away variants in the test's own copy of the table."""

import copy

import pytest
import torch
from torch import Tensor, nn

timm = pytest.importorskip("timm")

from timm.data.naflex_dataset import NaFlexCollator  # noqa: E402
from timm.data.naflex_transforms import Patchify  # noqa: E402
from timm.layers import Attention  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins import patch_grid, variants  # noqa: E402
from cape_plugins.attention import (  # noqa: E402
    AttentionSettings,
    PositionalAttention,
    RelativeAttention,
)
from cape_plugins.augment import Cape  # noqa: E402
from cape_plugins.timm.attention import PositionedAttention  # noqa: E402
from cape_plugins.timm.mark import drop_mark  # noqa: E402

SMALL = dict(depth=2, num_classes=10, embed_dim=16, num_heads=2, init_values=1.0)
HOSTS = ["vit", "naflexvit"]


class Distance(PositionalAttention):
    """As ALiBi: each head's logits fall with the distance; 0 where a token has no position."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.arange(1.0, settings.heads + 1))
        self.seen: list[Tensor | None] = []

    def logits(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor:
        self.seen.append(positions)
        assert positions is not None
        distance = (positions[:, :, None] - positions[:, None]).norm(dim=-1).nan_to_num(0.0)
        return -self.slopes[:, None, None] * distance[:, None]


class Rotate(PositionalAttention):
    """As rotary positions: queries and keys turn with their row; those without stay."""

    def place(self, x: Tensor, positions: Tensor | None) -> Tensor:
        assert positions is not None
        first, second = x.chunk(2, dim=-1)
        angle = positions[:, None, :, :1].nan_to_num(0.0)
        cosine, sine = angle.cos(), angle.sin()
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Count(PositionalAttention):
    """Adds to the output of each query the weights' mean distance in places, as relpos' values."""

    learns_values = True

    def mix(self, weights: Tensor) -> Tensor:
        places = torch.arange(weights.shape[-1], dtype=weights.dtype)
        return (weights @ places)[..., None].expand(*weights.shape[:3], 8)


@pytest.fixture(autouse=True)
def table(monkeypatch):
    rows = {
        "distance": variants.Variant(90, "nothing", attention=Distance),
        "distance_first": variants.Variant(
            91, "nothing", attention=Distance, first_layer_only=True
        ),
        "rotate": variants.Variant(92, "nothing", attention=lambda settings: Rotate()),
        "count": variants.Variant(93, "nothing", attention=lambda settings: Count()),
        "distance_and_sinusoids": variants.Variant(
            94, "sinusoid", attention=Distance, options=frozenset({"extent"})
        ),
    }
    rows["augmented"] = variants.Variant(
        97, "nothing", Cape, Distance, options=variants.get("cape").options
    )
    for name, row in rows.items():
        monkeypatch.setitem(variants.VARIANTS, name, row)


def create(host: str = "vit", pos: str = "distance", **kwargs) -> nn.Module:
    name = {"vit": "vit_tiny_patch16_cape_224", "naflexvit": "naflexvit_tiny_patch16_cape_gap"}
    torch.manual_seed(0)
    model = timm.create_model(name[host], pos=pos, **{**SMALL, **kwargs})
    for block in model.blocks:  # timm's initial weights attend to all alike
        if hasattr(getattr(block, "attn", None), "qkv"):
            nn.init.normal_(block.attn.qkv.weight)
            nn.init.normal_(block.attn.proj.weight)
    return model


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def attend(model: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
    """What timm's own attention gives with the bias as its mask."""
    stock = Attention(16, 2, qkv_bias=True)
    stock.load_state_dict(model.blocks[0].attn.state_dict(), strict=False)
    return stock(x, attn_mask=bias)


def test_a_row_of_the_table_is_a_model_by_name():
    from cape_plugins.timm.registry import variants_by_name

    assert variants_by_name()["distance"] == {"pos": "distance"}
    assert "abspos" not in variants_by_name()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("pos", ["nopos", "sinpos", "cape"])
def test_without_a_variant_there_the_attention_is_timms(host, pos):
    assert {type(block.attn) for block in create(host, pos).blocks} == {Attention}
    assert create(host, pos, attn_layer="diff").blocks[0].attn.__class__.__name__ == "DiffAttention"


def test_the_logits_are_those_of_the_variant_and_zero_for_the_class_token():
    model = create(reg_tokens=1).eval()
    attention, x = model.blocks[0].attn, images(2, 2 + 6, 16)
    model._pos_embed(torch.zeros(1, 2, 3, 16))
    bias = attention.relative.logits(x, 8, model.position.current.positions)
    assert bias.shape == (1, 2, 8, 8)
    assert not bias[..., :2, :].any()
    assert not bias[..., :, :2].any()
    expected = torch.cdist(patch_grid(2, 3), patch_grid(2, 3))
    torch.testing.assert_close(bias[0, :, 2:, 2:], torch.stack([-expected, -2 * expected]))
    torch.testing.assert_close(attention(x), attend(model, x, bias))
    assert not torch.allclose(attention(x), attend(model, x, 0 * bias), atol=1e-4)


@pytest.mark.parametrize("host", HOSTS)
def test_each_layer_gets_the_patches_coordinates_of_any_image_size(host):
    model = create(host, "distance_and_sinusoids", extent=0.7).eval()
    for height, width in ((4, 6), (1, 3)):
        model(images(1, 3, 16 * height, 16 * width))
        for block in model.blocks:
            positions, prefix = block.attn.relative.seen[-1][0], model.num_prefix_tokens
            assert prefix
            assert positions[:prefix].isnan().all()
            assert torch.equal(positions[prefix:], patch_grid(height, width, extent=0.7))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("host", HOSTS)
def test_all_layers_see_the_same_augmented_positions_of_each_sample(host, padded, checkpointing):
    model = create(host, "augmented", max_local_shift=0.0).train()
    model.set_grad_checkpointing(checkpointing)
    x = images(2, 3, 32, 48)
    if padded and host == "naflexvit":
        patchify = Patchify(16)
        x = NaFlexCollator(8)([(patchify(image), 0) for image in x])[0]
    model(x).sum().backward()
    seen = [positions for block in model.blocks for positions in block.attn.relative.seen]
    assert len(seen) == 2 + 2 * checkpointing
    for positions in seen:
        torch.testing.assert_close(positions, seen[0], rtol=0, atol=0, equal_nan=True)
    prefix, grid = model.num_prefix_tokens, patch_grid(2, 3)
    assert seen[0][:, :prefix].isnan().all()
    assert seen[0][:, prefix + 6 :].isnan().all()
    patches = seen[0][:, prefix : prefix + 6]
    scale = (patches[:, 5] - patches[:, 0]) / (grid[5] - grid[0])  # λ, the same on both axes
    torch.testing.assert_close(scale[:, 0], scale[:, 1])
    shift = patches[:, :1] / scale[:, None] - grid[:1]
    torch.testing.assert_close(patches, (grid + shift) * scale[:, None], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(scale[0], scale[1])
    assert not torch.allclose(shift[0], shift[1])
    model.eval()(x)
    last = model.blocks[0].attn.relative.seen[-1]
    torch.testing.assert_close(last[0, prefix : prefix + 6], grid)


@pytest.mark.parametrize("pos", ["distance", "rotate", "count"])
@pytest.mark.parametrize("max_patches", [30, 100])
def test_an_image_in_a_padded_naflex_batch_gives_what_it_gives_alone(pos, max_patches):
    model = create("naflexvit", pos).eval()
    several = [images(3, *size) for size in ((64, 96), (16, 48), (128, 32))]
    patchify = Patchify(16)
    batch = NaFlexCollator(max_patches)([(patchify(image), 0) for image in several])[0]
    alone = torch.cat([model(image[None]) for image in several])
    torch.testing.assert_close(model(batch), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("pos", ["distance", "rotate", "count"])
def test_it_depends_on_where_patches_are(host, pos):
    model, x = create(host, pos).eval(), images(1, 3, 48, 32)
    assert not torch.allclose(model(x), model(x.roll(16, dims=2)), atol=1e-3)


@pytest.mark.parametrize("options", [{}, dict(qk_norm=True), dict(scale_attn_norm=True)])
@pytest.mark.parametrize("pos", ["distance", "rotate", "count"])
def test_fused_and_unfused_attention_agree(pos, options):
    model, x = create(pos=pos, **options).eval(), images(2, 3, 32, 48)
    outputs = []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        outputs.append(model(x))
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, dict(qk_norm=True), dict(scale_attn_norm=True)])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_variant_that_does_nothing_is_timms_attention(monkeypatch, options, fused, is_causal):
    row = variants.Variant(95, "nothing", attention=lambda settings: PositionalAttention())
    monkeypatch.setitem(variants.VARIANTS, "idle", row)
    model, stock = (create(pos=pos, **options).eval() for pos in ("idle", "nopos"))
    weights = model.state_dict()
    drop_mark(weights)
    stock.load_state_dict(weights)
    x = images(2, 3, 32, 32)
    visible = (images(5, 5) > 0) | torch.eye(5, dtype=torch.bool)
    for attn_mask in (None, visible, images(5, 5)):
        outputs = []
        for each in (model, stock):
            for block in each.blocks:
                block.attn.fused_attn = fused
            mask = None if is_causal else attn_mask
            outputs.append(each(x, attn_mask=mask, is_causal=is_causal))
        torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
def test_a_learnt_variant_gets_scaled_queries_and_the_weights(monkeypatch, fused):
    def build(settings: AttentionSettings) -> RelativeAttention:
        return RelativeAttention(settings.head_dim, 3, values=True)

    monkeypatch.setitem(
        variants.VARIANTS, "learnt", variants.Variant(96, "nothing", attention=build)
    )
    attention, x = create(pos="learnt").eval().blocks[0].attn, images(2, 7, 16)
    attention.fused_attn = fused
    query, key, value = attention.qkv(x).view(2, 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
    expected = attention.relative(query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x), attention.proj(expected))


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_and_gate_are_timms(fused):
    attention, stock = PositionedAttention(16, 2, gated=True), Attention(16, 2, gated=True)
    stock.load_state_dict(attention.state_dict())
    attention.relative, x = PositionalAttention(), images(2, 5, 16)
    attention.fused_attn = stock.fused_attn = fused
    torch.testing.assert_close(attention(x), stock(x))
    attention.attn_drop.p = 0.5
    assert not torch.equal(attention(x), attention(x))
    assert torch.equal(attention.eval()(x), attention(x))


def test_the_bias_joins_the_callers_mask():
    model = create().eval()
    model._pos_embed(torch.zeros(1, 2, 2, 16))
    attention, x, visible = model.blocks[0].attn, images(2, 5, 16), torch.ones(5, 5).tril().bool()
    bias = attention.relative.logits(x, 5, model.position.current.positions)
    expected = attend(model, x, bias.masked_fill(~visible, -torch.inf))
    torch.testing.assert_close(attention(x, attn_mask=visible), expected)
    torch.testing.assert_close(attention(x, is_causal=True), expected)


def test_a_variant_of_the_first_layer_leaves_the_others_to_timm():
    model, x = create(pos="distance_first").eval(), images(1, 5, 16)
    assert "blocks.0.attn.relative.slopes" in model.state_dict()
    assert "blocks.1.attn.relative.slopes" not in model.state_dict()
    stock = Attention(16, 2, qkv_bias=True)
    stock.load_state_dict(model.blocks[1].attn.state_dict())
    assert torch.equal(model.blocks[1].attn(x), stock(x))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("checkpointing", [True, False])
def test_training_reaches_what_the_variant_learns(host, checkpointing):
    model = create(host, "distance_and_sinusoids").train()
    model.set_grad_checkpointing(checkpointing)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(images(2, 3, 32, 48)).float().square().sum()
    loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert model.blocks[0].attn.relative.slopes.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fused", [True, False])
def test_half_precision_stays_close_to_float32(dtype, fused):
    model, x = create().eval(), images(2, 3, 32, 48)
    for block in model.blocks:
        block.attn.fused_attn = fused
    expected = model(x)
    out = model.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    assert (out.float() - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("host", HOSTS)
def test_torch_compile_needs_no_graph_break(host):
    model = create(host).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in ((32, 48), (48, 64)):
        x = images(1, 3, *size)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)


def test_a_copy_has_positions_of_its_own():
    model = create().eval()
    other = copy.deepcopy(model)
    assert torch.equal(other(images(1, 3, 32, 48)), model(images(1, 3, 32, 48)))
    other(images(1, 3, 64, 64))
    assert model.position.current.positions.shape == (1, 7, 2)
    assert other.blocks[1].attn.current is other.position.current


def test_meta_device_construction_and_init_weights():
    with torch.device("meta"):
        model = create(pos="rotate")
    model = model.to_empty(device="cpu")
    model.init_weights()
    assert model.eval()(images(1, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize(
    ("host", "options", "message"),
    [
        ("vit", dict(attn_layer="diff"), "distance sits in timm's Attention, and Block has Diff"),
        ("naflexvit", dict(attn_layer="diff"), "and Block has DiffAttention: leave block_fn"),
        ("naflexvit", dict(attn_type="rope"), "and EvaBlock has AttentionRope"),
        ("vit", dict(patch_drop_rate=0.5), "patch_drop_rate > 0 leaves the attention of distance"),
        ("naflexvit", dict(patch_drop_rate=0.5), "patch_drop_rate > 0 leaves the attention of"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(host, options, message):
    with pytest.raises(ValueError, match=message):
        create(host, **options)


def test_a_block_without_attention_of_timms_is_refused_by_name():
    from timm.models.vision_transformer import ParallelScalingBlock

    with pytest.raises(ValueError, match="and ParallelScalingBlock has NoneType"):
        create(block_fn=ParallelScalingBlock)
