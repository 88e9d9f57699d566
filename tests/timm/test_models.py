"""ViTs by name inside timm: everything goes through timm.create_model."""

import argparse
import inspect
import pickle

import pytest
import torch

timm = pytest.importorskip("timm")

from timm.utils import ParseKwargs  # noqa: E402

import cape_plugins.timm  # noqa: E402 - registers, also where autoload is switched off
from cape_plugins import patch_grid, sinusoid_2d  # noqa: E402
from cape_plugins.augment import AsGiven  # noqa: E402
from cape_plugins.timm.registry import LOW, variants_by_name  # noqa: E402
from cape_plugins.variants import get  # noqa: E402

NAMED = tuple(variants_by_name())
VARIANTS = tuple(name for name in NAMED if name != "univit")
SMALL = dict(depth=2, num_classes=10)


def create(variant: str = "cape", **kwargs) -> torch.nn.Module:
    return timm.create_model(f"vit_tiny_patch16_{variant}_224", **{**SMALL, **kwargs})


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", NAMED)
def test_every_variant_is_listed_in_all_sizes(variant):
    names = {f"vit_{size}_patch16_{variant}_224" for size in ("tiny", "small", "base")}
    names |= {f"vit_tiny_patch8_{variant}_64", f"vit_tiny_patch4_{variant}_32"}
    pattern = f"vit_*_patch*[0-9]_{variant}_[0-9]*"
    assert set(timm.list_models(pattern, module="vision_transformer")) == names
    tagged = timm.list_models(pattern, include_tags=True)
    assert set(tagged) == {f"{name}.untrained" for name in names}
    assert timm.list_models(pattern, pretrained=True) == []


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


def test_univit_is_cape_without_its_scale():
    name = "vit_tiny_patch16_univit_224"
    univit, cape = (timm.create_model(n, **SMALL) for n in (name, "vit_tiny_patch16_cape_224"))
    assert (univit.position.pos, univit.position.max_global_scale) == ("cape", 1.0)
    assert cape.position.max_global_scale == 1.4
    assert univit.position.max_global_shift == cape.position.max_global_shift == 0.5
    assert timm.create_model(name, max_global_scale=1.1).position.max_global_scale == 1.1


@pytest.mark.parametrize(("patch", "size"), [(16, 224), (8, 64), (4, 32)])
def test_the_pretrained_cfg_is_complete(patch, size):
    model = timm.create_model(f"vit_tiny_patch{patch}_cape_{size}", **SMALL)
    cfg = model.pretrained_cfg
    assert cfg["input_size"] == (3, size, size)
    assert model.patch_embed.grid_size == (size // patch, size // patch)
    assert cfg["fixed_input_size"] is False
    assert (cfg["first_conv"], cfg["classifier"]) == ("patch_embed.proj", "head")
    assert (cfg["tag"], cfg["num_classes"]) == ("untrained", 1000)
    data = timm.data.resolve_data_config(model=model)
    assert data["interpolation"] == "bicubic"
    assert data["crop_pct"] == (0.875 if size == 224 else 1.0)  # no border to lose at 32 and 64


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
def test_evaluation_is_deterministic_and_only_those_named_so_augment_in_training(variant):
    model, x = create(variant), images(2, 3, 64, 64)
    model.eval()
    assert torch.equal(model(x), model(x))
    model.train()
    as_given = get(variants_by_name()[variant]["pos"]).augment is AsGiven
    assert torch.equal(model(x), model(x)) == as_given


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


def test_options_reach_the_positions():
    options = dict(max_global_shift=0.1, max_local_shift=(0.2, 0.3), max_global_scale=2.0)
    position = create(**options, extent=0.7).position
    assert {name: getattr(position, name) for name in options} == options
    assert position.extent == 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(max_global_scale=0.5), "max_global_scale must be a finite number ≥ 1, got 0.5"),
        (dict(max_global_shift=-0.5), "max_global_shift must be a finite number ≥ 0, got -0.5"),
        (dict(max_local_shift=-1.0), "max_local_shift"),
        (dict(extent=0.0), "extent must be finite and > 0, got 0.0"),
        (dict(embed_dim=191, num_heads=1), "dim must be even"),
        (dict(pos="relpos"), "unknown variant 'relpos': choose one of nopos, sinpos, cape"),
        (dict(pos="abspos"), "timm's own models: create vit_tiny_patch16_224"),
        (dict(pos_embed="learn"), "timm's own models: create vit_tiny_patch16_224"),
    ],
)
@pytest.mark.parametrize("variant", ["nopos", "cape"])
def test_wrong_option_values_are_refused_whatever_the_variant(variant, options, message):
    with pytest.raises(ValueError, match=message):
        create(variant, **options)


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        (
            "nopos",
            dict(max_global_shift=0.1),
            "max_global_shift = 0.1 is for cape.*; nopos takes",
        ),
        ("nopos", dict(extent=0.7), "extent = 0.7 is for sinpos.*; nopos takes none of these"),
        (
            "sinpos",
            dict(max_local_shift=(0.1, 0.1)),
            "is for cape.*; sinpos takes extent",
        ),
        ("sinpos", dict(max_global_scale=1.0), "max_global_scale = 1.0 is for cape"),
    ],
)
@pytest.mark.parametrize("name", ["vit_tiny_patch16_{}_224", "naflexvit_tiny_patch16_{}_gap"])
def test_an_option_that_the_variant_does_not_take_is_refused(name, variant, options, message):
    with pytest.raises(ValueError, match=message):
        timm.create_model(name.format(variant), **SMALL, **options)


def test_an_option_at_its_default_counts_as_not_given():
    create("nopos", max_global_shift=0.5, max_local_shift=None, max_global_scale=1.4, extent=1.0)


def test_entrypoints_are_functions_of_their_modules_as_timms_are():
    for module in (cape_plugins.timm.vision_transformer, cape_plugins.timm.naflexvit):
        for name in module.default_cfgs:
            entrypoint = timm.model_entrypoint(name)
            assert entrypoint is getattr(module, name)
            assert pickle.loads(pickle.dumps(entrypoint)) is entrypoint
            assert name in module.__all__
            named = variants_by_name()[name.split("_", 3)[3].rpartition("_")[0]]
            assert f"pos={named['pos']!r}" in entrypoint.__doc__
            (pretrained, others) = inspect.signature(entrypoint).parameters.values()
            assert (pretrained.name, pretrained.default) == ("pretrained", False)
            assert others.kind is inspect.Parameter.VAR_KEYWORD


def test_what_train_py_makes_of_model_kwargs_works():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", default={}, action=ParseKwargs)  # as it does
    given = "max_global_scale=1 max_global_shift=0.25 max_local_shift=(0.1,0.2) extent=0.7"
    options = parser.parse_args(["--model-kwargs", *given.split()]).model_kwargs
    position = create(**options).train().position
    assert position.max_global_scale == 1
    assert position.max_local_shift == (0.1, 0.2)
    assert create(**options)(images(1, 3, 32, 48)).shape == (1, 10)
    for given in ("max_local_shift=[0.1,0.2]", "max_local_shift=0.0", "max_local_shift=None"):
        options = parser.parse_args(["--model-kwargs", given]).model_kwargs
        assert create(**options)(images(1, 3, 32, 48)).isfinite().all()


@pytest.mark.parametrize(
    "given",
    [
        "max_global_scale=big",
        "max_global_shift=0,5",
        "max_local_shift=1/14",
        "max_local_shift=(0.1,0.1,0.1)",
        "extent=wide",
        "extent=True",
    ],
)
def test_model_kwargs_that_are_no_numbers_are_refused(given):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", default={}, action=ParseKwargs)
    options = parser.parse_args(["--model-kwargs", given]).model_kwargs
    with pytest.raises(ValueError, match=given.split("=")[0]):
        create(**options)


def test_misspelt_options_are_refused():
    with pytest.raises(TypeError, match="max_gobal_shift"):
        create(max_gobal_shift=0.5)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_{}_224", "naflexvit_tiny_patch16_{}_gap"])
@pytest.mark.parametrize("pos", ["sinpos", "cape", "univit"])
def test_low_names_have_the_same_weights_and_lower_frequencies(name, pos):
    paper = timm.create_model(name.format(pos), depth=1)
    low = timm.create_model(name.format(f"{pos}_low"), depth=1)
    positions = [getattr(model, "embeds", model).position for model in (paper, low)]
    assert [position.frequency_scale for position in positions] == [1.0, LOW]
    assert positions[0].augmentation == positions[1].augmentation
    assert {k: v.shape for k, v in paper.state_dict().items()} == {
        k: v.shape for k, v in low.state_dict().items()
    }


def test_frequency_scale_reaches_rotations_and_is_refused_where_nothing_turns():
    images = torch.randn(1, 3, 32, 32)
    torch.manual_seed(0)
    one = timm.create_model("vit_tiny_patch4_ropepos_32", depth=1).eval()
    torch.manual_seed(0)
    low = timm.create_model("vit_tiny_patch4_ropepos_32", depth=1, frequency_scale=0.2).eval()
    assert (one.forward_features(images) - low.forward_features(images)).abs().max() > 1e-4
    with pytest.raises(
        ValueError,
        match=r"frequency_scale = 0\.2 is for sinpos, cape, rope, cape_rope, random, random_rope",
    ):
        timm.create_model("vit_tiny_patch4_alibi_32", depth=1, frequency_scale=0.2)
