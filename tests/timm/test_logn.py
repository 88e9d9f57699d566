"""attention_logn beside every variant, in our models and, in tests, in timm's own."""

import math

import pytest
import torch

timm = pytest.importorskip("timm")

from timm.data.naflex_dataset import NaFlexCollator  # noqa: E402
from timm.data.naflex_transforms import Patchify  # noqa: E402
from timm.layers import Attention  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.timm.attention import use_logn  # noqa: E402
from cape_plugins.timm.registry import names_without_table  # noqa: E402

SMALL = dict(depth=2, num_classes=10, embed_dim=16, num_heads=2)
NAMES = {"vit": "vit_tiny_patch16_cape_224", "naflexvit": "naflexvit_tiny_patch16_cape_gap"}


def create(host: str = "vit", pos: str | None = "cape", **kwargs) -> torch.nn.Module:
    torch.manual_seed(0)
    name, kwargs = NAMES[host], {**SMALL, "init_values": 1.0, **kwargs}
    model = timm.create_model(name, pos=pos, **kwargs)
    for block in model.blocks:  # timm's initial weights attend to all alike
        torch.nn.init.normal_(block.attn.qkv.weight)
    return model.eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pos", names_without_table())
def test_at_the_training_size_nothing_changes_and_at_another_queries_are_scaled(pos):
    plain, scaled = create(pos=pos), create(pos=pos, attention_logn=1 + 6)
    trained_at, larger = images(1, 3, 32, 48), images(1, 3, 64, 96)
    torch.testing.assert_close(scaled(trained_at), plain(trained_at), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scaled(larger), plain(larger), atol=1e-3)
    for block in plain.blocks:
        rows = slice(None, block.attn.attn_dim)  # of the queries
        block.attn.qkv.weight.data[rows] *= math.log(1 + 24) / math.log(1 + 6)
        block.attn.qkv.bias.data[rows] *= math.log(1 + 24) / math.log(1 + 6)
    torch.testing.assert_close(scaled(larger), plain(larger), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pos", names_without_table())
@pytest.mark.parametrize("key_only", [False, True])
def test_an_image_in_a_padded_naflex_batch_gives_what_it_gives_alone(pos, key_only):
    model = create("naflexvit", pos, attention_logn=20, use_key_only_attn_mask=key_only)
    several = [images(3, *size) for size in ((64, 96), (16, 48), (128, 32))]
    patchify = Patchify(16)
    batch = NaFlexCollator(40)([(patchify(image), 0) for image in several])[0]
    alone = torch.cat([model(image[None]) for image in several])
    torch.testing.assert_close(model(batch), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pos", ["nopos", "alibi"])
def test_fused_and_unfused_attention_agree(pos):
    model, x = create(pos=pos, attention_logn=50), images(2, 3, 32, 48)
    outputs = []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        outputs.append(model(x))
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "naflexvit_base_patch16_gap"])
def test_a_model_of_timms_own_is_given_it_after_it_was_built(name):
    torch.manual_seed(0)
    size = dict(dynamic_img_size=True) if name.startswith("vit") else {}
    model = timm.create_model(name, **SMALL, **size, init_values=1.0).eval()
    x, weights = images(2, 3, 64, 64), set(model.state_dict())
    for block in model.blocks:
        torch.nn.init.normal_(block.attn.qkv.weight)
        torch.nn.init.normal_(block.attn.proj.weight)
    before = model(x)
    tokens = model.num_prefix_tokens + 16
    use_logn(model, tokens)
    torch.testing.assert_close(model(x), before, atol=1e-5, rtol=1e-5)
    use_logn(model, 3)
    assert not torch.allclose(model(x), before, atol=1e-3)
    use_logn(model, 0)
    torch.testing.assert_close(model(x), before, atol=1e-5, rtol=1e-5)
    assert set(model.state_dict()) == weights


def test_off_by_default_the_attention_is_timms():
    for pos in ("nopos", "sinpos", "cape"):
        assert {type(block.attn) for block in create(pos=pos).blocks} == {Attention}


def test_checkpoints_fit_with_and_without():
    create(attention_logn=7).load_state_dict(create().state_dict())


def test_torch_compile_needs_no_graph_break():
    model, x = create(attention_logn=50), images(1, 3, 32, 48)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("host", NAMES)
@pytest.mark.parametrize("value", [1, -197, 196.5, True, "many"])
def test_what_is_no_number_of_tokens_is_refused(host, value):
    with pytest.raises(ValueError, match="attention_logn must be the number of tokens"):
        create(host, attention_logn=value)


def test_another_attention_is_refused_by_name():
    with pytest.raises(ValueError, match="attention_logn sits in timm's Attention, which is not"):
        create(attention_logn=197, attn_layer="diff")
    with pytest.raises(ValueError, match="not what ResNet has"):
        use_logn(timm.create_model("resnet10t"), 50)
