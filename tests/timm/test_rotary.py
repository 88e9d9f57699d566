"""Rotary positions in timm's ViT: what distinguishes rope and cape_rope from the other variants."""

import pytest
import torch

timm = pytest.importorskip("timm")

from timm.layers.attention import AttentionRope  # noqa: E402
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3  # noqa: E402
from timm.models.eva import Eva  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.timm.vision_transformer import VisionTransformerCape  # noqa: E402

ROPE = ["ropepos", "ropepos_mixed", "cape_rope", "cape_rope_mixed"]
HOSTS = ["vit_tiny_patch16_{}_224", "naflexvit_tiny_patch16_{}_gap"]
SMALL = dict(depth=2, num_classes=10, embed_dim=32, num_heads=2, init_values=1.0)


def create(variant: str, host: str = HOSTS[0], **kwargs) -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(host.format(variant), **{**SMALL, **kwargs})
    for block in model.blocks:  # timm's initial weights attend to all alike
        torch.nn.init.normal_(block.attn.qkv.weight, std=0.5)
    return model


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_timms_models_of_these_names_stay_timms():
    for name in ("vit_small_patch16_rope_224", "vit_base_patch16_rope_mixed_224"):
        assert isinstance(timm.create_model(name, depth=1), Eva)
    for size in ("tiny", "small", "base"):
        for variant in ROPE:
            name = f"vit_{size}_patch16_{variant}_224"
            assert isinstance(timm.create_model(name, depth=1), VisionTransformerCape)


@pytest.mark.parametrize("reg_tokens", [0, 2])
def test_a_layer_is_timms_rotary_attention_at_dinov3s_coordinates(reg_tokens):
    # DINOv3's centres end half a patch before the image's border: 7 of 8 at 8 patches
    model = create("ropepos", extent=7 / 8, reg_tokens=reg_tokens).eval()
    model(images(1, 3, 128, 128))
    ours, x = model.blocks[0].attn, images(2, 1 + reg_tokens + 64, 32)
    stock = AttentionRope(32, 2, qkv_bias=True, num_prefix_tokens=1 + reg_tokens, rotate_half=True)
    stock.load_state_dict(ours.state_dict())
    rope = RotaryEmbeddingDinoV3(16, rotate_half=True).get_embed([8, 8])
    torch.testing.assert_close(ours(x), stock.eval()(x, rope=rope), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("variant", ["cape_rope", "cape_rope_mixed"])
def test_a_global_shift_acts_only_against_tokens_without_a_position(variant, host):
    shift = dict(max_global_shift=0.5, max_local_shift=0.0, max_global_scale=1.0)
    x = images(2, 3, 64, 96)
    alone = create(variant, host, class_token=False, reg_tokens=0, global_pool="avg", **shift)
    torch.testing.assert_close(alone.train()(x), alone.eval()(x), rtol=1e-4, atol=1e-4)
    for tokens in (dict(class_token=True, reg_tokens=0), dict(class_token=False, reg_tokens=1)):
        model = create(variant, host, global_pool="avg", **tokens, **shift)
        assert not torch.allclose(model.train()(x), model.eval()(x), atol=1e-3)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("variant", ["cape_rope", "cape_rope_mixed"])
@pytest.mark.parametrize("option", [dict(max_local_shift=0.1), dict(max_global_scale=1.4)])
def test_local_shift_and_scale_act_between_patches(variant, host, option):
    still = dict(max_global_shift=0.0, max_local_shift=0.0, max_global_scale=1.0)
    tokens = dict(class_token=False, reg_tokens=0, global_pool="avg")
    model = create(variant, host, **tokens, **{**still, **option})
    x = images(2, 3, 64, 96)
    assert not torch.allclose(model.train()(x), model.eval()(x), atol=1e-3)


@pytest.mark.parametrize("variant", ROPE)
def test_the_extent_keeps_the_distances_of_patches_at_another_size(variant):
    small = create(variant)
    large = create(variant, extent=7 / 3)  # 4 patches from -1 to 1, 8 from -7/3 to 7/3
    large.load_state_dict(small.state_dict())
    tables = []
    for model, side in ((small, 64), (large, 128)):
        model.eval()(images(1, 3, side, side))
        attention = model.blocks[0].attn
        x = torch.ones(1, 2, 1 + (side // 16) ** 2, 16)
        turned = attention.relative.place(x, model.position.current.positions)[:, :, 1:]
        scores = turned @ turned.mT  # all that matters is the distance
        tables.append(scores.unflatten(2, (side // 16, -1)).unflatten(4, (side // 16, -1)))
    near = tables[1][:, :, :4, :4, :4, :4]
    torch.testing.assert_close(tables[0], near, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("host", HOSTS)
def test_learnt_frequencies_are_not_decayed_and_reach_every_layer(host):
    model = create("ropepos_mixed", host)
    names = {f"blocks.{layer}.attn.relative.frequencies" for layer in range(2)}
    assert names <= model.no_weight_decay()
    model(images(2, 3, 64, 96)).square().sum().backward()
    parameters = dict(model.named_parameters())
    assert all(parameters[name].grad.any() for name in names)
    first, second = (parameters[name] for name in sorted(names))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("variant", ROPE)
def test_heads_whose_channels_two_axes_cannot_share_are_refused(variant, host):
    with pytest.raises(ValueError, match="2 axes need heads of a multiple of 4 channels, got 6"):
        create(variant, host, embed_dim=12)
