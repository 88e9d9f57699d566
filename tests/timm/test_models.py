"""ViTs by name inside timm: everything goes through timm.create_model."""

import logging

import numpy as np
import pytest
import torch

timm = pytest.importorskip("timm")

from timm.optim import create_optimizer_v2  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins import patch_grid, sinusoid_2d  # noqa: E402

VARIANTS = ["nopos", "sinpos", "cape"]
SMALL = dict(depth=2, num_classes=10)


def create(variant: str = "cape", **kwargs) -> torch.nn.Module:
    return timm.create_model(f"vit_tiny_patch16_{variant}_224", **{**SMALL, **kwargs})


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_sizes_of_each_variant_are_listed(variant):
    names = {f"vit_{size}_patch16_{variant}_224" for size in ("tiny", "small", "base")}
    assert set(timm.list_models(f"*_{variant}_*")) >= names


@pytest.mark.parametrize(
    ("size", "width", "heads"), [("tiny", 192, 3), ("small", 384, 6), ("base", 768, 12)]
)
def test_the_sizes_are_timms(size, width, heads):
    model = timm.create_model(f"vit_{size}_patch16_cape_224", depth=1)
    stock = timm.create_model(f"vit_{size}_patch16_224", depth=1)
    assert model.embed_dim == stock.embed_dim == width
    assert model.blocks[0].attn.num_heads == stock.blocks[0].attn.num_heads == heads
    ours = {k: v.shape for k, v in model.state_dict().items() if k != "cls_pos_embed"}
    theirs = {k: v.shape for k, v in stock.state_dict().items() if k != "pos_embed"}
    assert ours == theirs


def test_the_pretrained_cfg_is_complete():
    cfg = create().pretrained_cfg
    assert cfg["input_size"] == (3, 224, 224)
    assert cfg["fixed_input_size"] is False
    assert (cfg["first_conv"], cfg["classifier"]) == ("patch_embed.proj", "head")
    assert timm.data.resolve_data_config(model=create())["interpolation"] == "bicubic"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(224, 224), (16, 16), (16, 48), (160, 384), (80, 112)])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_any_size_that_the_patches_divide_works(variant, size, training):
    out = create(variant).train(training)(images(2, 3, *size))
    assert out.shape == (2, 10)
    assert out.isfinite().all()


def test_a_size_that_the_patches_do_not_divide_is_named():
    with pytest.raises(AssertionError, match=r"height \(100\) should be divisible by patch size"):
        create()(images(1, 3, 100, 96))


def test_dynamic_img_pad_takes_any_size_at_all():
    assert create(dynamic_img_pad=True)(images(1, 3, 100, 150)).shape == (1, 10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_evaluation_is_deterministic_and_only_cape_augments_in_training(variant):
    model, x = create(variant), images(2, 3, 64, 64)
    model.eval()
    assert torch.equal(model(x), model(x))
    model.train()
    assert torch.equal(model(x), model(x)) == (variant != "cape")


def test_positions_are_added_to_the_patches_and_the_class_token_has_its_own():
    model = create("sinpos").eval()
    tokens = torch.zeros(1, 2, 3, 192)
    out = model._pos_embed(tokens)
    assert torch.equal(out[:, :1], model.cls_token + model.cls_pos_embed)
    torch.testing.assert_close(out[0, 1:], sinusoid_2d(patch_grid(2, 3), 192))
    flat = create("sinpos", dynamic_img_size=False, img_size=(32, 48)).eval()
    torch.testing.assert_close(flat._pos_embed(tokens.view(1, 6, 192))[:, 1:], out[:, 1:])


def test_nopos_has_no_class_token_position_and_is_permutation_invariant():
    model, x = create("nopos").eval(), images(1, 3, 32, 32)
    assert model.cls_pos_embed is None
    swapped = torch.cat([x[..., 16:], x[..., :16]], dim=-1)
    torch.testing.assert_close(model(x), model(swapped), atol=1e-5, rtol=1e-5)
    cape = create("cape").eval()
    assert not torch.allclose(cape(x), cape(swapped), atol=1e-5)


def test_register_tokens_and_mean_pooling_without_class_token_work():
    assert create(reg_tokens=4)(images(1, 3, 64, 64)).shape == (1, 10)
    model = create(class_token=False, global_pool="avg")
    assert model.cls_pos_embed is None
    assert model(images(1, 3, 64, 64)).shape == (1, 10)


def test_timms_own_ways_into_the_model_see_the_positions():
    model, x = create().eval(), images(2, 3, 64, 96)
    features = timm.create_model(
        "vit_tiny_patch16_cape_224", depth=2, features_only=True, out_indices=(0, 1)
    )
    assert [f.shape[2:] for f in features(x)] == [(4, 6), (4, 6)]
    final, _ = model.forward_intermediates(x)
    torch.testing.assert_close(final, model.forward_features(x))


def test_the_class_tokens_position_is_not_decayed_and_belongs_to_the_stem():
    model = create()
    assert "cls_pos_embed" in model.no_weight_decay()
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, layer_decay=0.5)
    scale = {id(p): g["lr_scale"] for g in optimizer.param_groups for p in g["params"]}
    assert scale[id(model.cls_pos_embed)] == scale[id(model.cls_token)]


def test_every_parameter_gets_a_gradient():
    model = create()
    model(images(2, 3, 32, 32)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_options_reach_the_positions():
    model = create(max_global_shift=0.1, max_local_shift=0.2, max_global_scale=2.0, extent=0.7)
    text = repr(model.position)
    assert "max_global_shift=0.1, max_local_shift=0.2, max_global_scale=2.0, extent=0.7" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(max_global_scale=0.5), "max_global_scale must be a finite number ≥ 1, got 0.5"),
        (dict(max_global_shift=-0.5), "max_global_shift must be a finite number ≥ 0, got -0.5"),
        (dict(max_local_shift=-1.0), "max_local_shift"),
        (dict(extent=0.0), "extent must be finite and > 0, got 0.0"),
        (dict(embed_dim=191, num_heads=1), "dim must be even"),
        (dict(pos="rope"), "unknown variant 'rope': choose one of nopos, sinpos, cape"),
        (dict(pos="abspos"), "timm's own ViT"),
        (dict(pos_embed="learn"), "timm's own ViT"),
    ],
)
@pytest.mark.parametrize("variant", ["nopos", "cape"])
def test_wrong_option_values_are_refused_whatever_the_variant(variant, options, message):
    with pytest.raises(ValueError, match=message):
        create(variant, **options)


def test_misspelt_options_are_refused():
    with pytest.raises(TypeError, match="max_gobal_shift"):
        create(max_gobal_shift=0.5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_model_comes_back_by_local_dir_with_its_options(variant, tmp_path):
    model = create(variant, max_global_scale=1.1).eval()
    timm.models.save_for_hf(model, str(tmp_path))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert again.position.max_global_scale == 1.1
    x = images(1, 3, 96, 64)
    assert torch.equal(again(x), model(x))


def test_a_standard_vit_checkpoint_loads_and_its_table_is_dropped_aloud(tmp_path, caplog):
    stock = timm.create_model("vit_tiny_patch16_224", **SMALL)
    torch.save(stock.state_dict(), tmp_path / "stock.pth")
    overlay = dict(file=str(tmp_path / "stock.pth"), num_classes=10)
    with caplog.at_level(logging.WARNING):
        model = create(pretrained=True, pretrained_cfg_overlay=overlay)
    assert "dropped pos_embed (1, 197, 192)" in caplog.text
    assert torch.equal(model.cls_pos_embed, stock.pos_embed[:, :1])
    assert torch.equal(model.blocks[1].mlp.fc2.weight, stock.blocks[1].mlp.fc2.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_to_float32(dtype):
    model, x = create().eval(), images(2, 3, 160, 160)
    with torch.no_grad():
        expected = model(x)
        out = model.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=0)


def test_meta_device_construction_and_init_weights():
    with torch.device("meta"):
        model = create()
    model = model.to_empty(device="cpu")
    model.init_weights()
    assert 0.015 < model.cls_pos_embed.std() < 0.025
    assert model.eval()(images(1, 3, 32, 32)).isfinite().all()


def test_fx_traces_through_the_model_without_freezing_the_noise():
    from timm.models import create_feature_extractor

    traced = create_feature_extractor(create().train(), {"head": "logits"})
    x = images(2, 3, 224, 224)
    first, second = (next(iter(traced(x).values())) for _ in range(2))
    assert not torch.equal(first, second)


def test_onnx_export_in_evaluation_takes_any_size(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create().eval()
    height, width = torch.export.Dim("h", min=2, max=40), torch.export.Dim("w", min=2, max=40)
    torch.onnx.export(
        model,
        (images(2, 3, 64, 96),),
        tmp_path / "model.onnx",
        dynamo=True,
        dynamic_shapes={"x": {0: torch.export.Dim("b"), 2: 16 * height, 3: 16 * width}},
        verbose=False,
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for shape in ((3, 3, 64, 96), (1, 3, 160, 224)):
        x = images(*shape)
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert np.abs(out - model(x).detach().numpy()).max() < 1e-5
