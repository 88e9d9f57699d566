"""Our models by name inside timm: names, options and what is refused, through timm.create_model."""

import argparse
import pickle
import re
import sys

import pytest
import timm
import torch
from timm.models.eva import Eva
from timm.utils import ParseKwargs

import cape_plugins.timm  # registers, also where autoload is switched off
from cape_plugins import patch_grid, sinusoid_2d
from cape_plugins.augment import AsGiven
from cape_plugins.timm.registry import LOW, variants_by_name
from cape_plugins.variants import get
from cape_support import ROOT, run
from timm_support import HOSTS, into_blocks

NAMED = tuple(variants_by_name())
SMALL = dict(depth=1, num_classes=10)


# names


@pytest.mark.parametrize("variant", NAMED)
def test_every_variant_is_listed_in_all_sizes(variant):
    names = {f"vit_{size}_patch16_{variant}_224" for size in ("tiny", "small", "base")}
    names |= {f"vit_tiny_patch8_{variant}_64", f"vit_tiny_patch4_{variant}_32"}
    pattern = f"vit_*_patch*[0-9]_{variant}_[0-9]*"
    assert set(timm.list_models(pattern, module="vision_transformer")) == names
    tagged = timm.list_models(pattern, module="vision_transformer", include_tags=True)
    assert set(tagged) == {f"{name}.untrained" for name in names}
    assert not timm.list_models(pattern, module="vision_transformer", pretrained=True)
    names = {f"naflexvit_{size}_patch16_{variant}_gap" for size in ("tiny", "small", "base")}
    assert set(timm.list_models(f"naflexvit_*_patch16_{variant}_gap", module="naflexvit")) == names
    cfg = timm.get_pretrained_cfg(f"naflexvit_tiny_patch16_{variant}_gap")
    assert (cfg.tag, cfg.input_size, cfg.fixed_input_size) == ("untrained", (3, 384, 384), False)
    assert (cfg.first_conv, cfg.classifier) == ("embeds.proj", "head")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *((f"vit_{s}_patch16_cape_224", f"vit_{s}_patch16_224") for s in ("tiny", "small", "base")),
        ("naflexvit_base_patch16_cape_gap", "naflexvit_base_patch16_gap"),
    ],
)
def test_the_sizes_are_timms(ours, theirs):
    model, stock = (timm.create_model(name, depth=1) for name in (ours, theirs))
    assert model.blocks[0].attn.num_heads == stock.blocks[0].attn.num_heads
    ours, theirs = (
        {name: p.shape for name, p in one.named_parameters() if "pos_embed" not in name}
        for one in (model, stock)
    )
    assert ours == theirs


def test_our_models_are_listed_and_no_other():
    ours = cape_plugins.timm.list_models()
    assert {*ours} <= {*timm.list_models()}
    assert {timm.model_entrypoint(name).__module__ for name in ours} == {
        f"cape_plugins.timm.{module}" for module in ("vision_transformer", "naflexvit", "eva")
    }
    assert {*cape_plugins.timm.vision_transformer.default_cfgs} <= {*ours}
    assert not {"deit_tiny_patch16_224", "vit_small_patch16_rope_224"} & {*ours}
    small = cape_plugins.timm.list_models("*tiny*_32")
    assert "vit_tiny_patch4_ropepos_32" in small
    assert all("tiny" in name for name in small)
    both = cape_plugins.timm.list_models(["*dinov3*", "*nopos*"])
    assert {"vit_small_patch16_dinov3_cape", "vit_base_patch16_nopos_224"} <= {*both}


def test_four_names_with_rope_are_four_models():
    """As the table of timm's page tells them apart."""
    found = []
    for name in ("rope", "rope_cape", "ropepos", "cape_rope"):
        model = timm.create_model(f"vit_small_patch16_{name}_224", depth=1)
        module = timm.model_entrypoint(f"vit_small_patch16_{name}_224").__module__
        augments = not torch.equal(*(model.train()(torch.ones(1, 3, 224, 224)) for _ in range(2)))
        found.append((isinstance(model, Eva), module.startswith("cape_plugins"), augments))
    assert found == [
        (True, False, False),
        (True, True, True),
        (False, True, False),
        (False, True, True),
    ]


@pytest.mark.parametrize("host", HOSTS)
def test_a_printed_model_says_which_local_shift_is_applied(create, host):
    def printed(**options) -> str:
        (line,) = re.findall("max_local_shift=[^,]*", str(create("cape", host, **options)))
        return line

    assert "half a patch" in printed()
    assert "0.1" in printed(max_local_shift=0.1)
    assert "0.0" in printed(max_local_shift=0.0)


def test_univit_is_cape_without_its_scale(create):
    univit, cape = (create(name).position for name in ("univit", "cape"))
    assert univit.pos == cape.pos == "cape"
    assert univit.options == {**cape.options, "max_global_scale": 1.0}
    assert (cape.options["max_global_scale"], cape.options["max_global_shift"]) == (1.4, 0.5)
    assert create("univit", max_global_scale=1.1).position.options["max_global_scale"] == 1.1


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("pos", ["sinpos", "cape", "univit"])
def test_low_names_have_the_same_weights_and_lower_frequencies(create, host, pos):
    paper, low = create(pos, host), create(f"{pos}_low", host)
    positions = [getattr(model, "embeds", model).position for model in (paper, low)]
    assert [one.added.frequency_scale for one in positions] == [1.0, LOW]
    assert positions[0].augmentation == positions[1].augmentation
    assert [*paper.state_dict()] == [*low.state_dict()]


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


def test_entrypoints_are_functions_of_their_modules_as_timms_are():
    for module in (cape_plugins.timm.vision_transformer, cape_plugins.timm.naflexvit):
        for name in module.default_cfgs:
            entrypoint = timm.model_entrypoint(name)
            assert pickle.loads(pickle.dumps(entrypoint)) is entrypoint is getattr(module, name)
            assert name in module.__all__
    about = timm.model_entrypoint("vit_tiny_patch16_cape_224").__doc__
    assert re.search(
        r"pos='cape'.*max_global_shift \(0\.5\): .*half images.*extent \(1\.0\)", about, re.DOTALL
    )


ANOTHER_PACKAGES = """
import warnings
from dataclasses import dataclass
import torch
from cape_plugins import PositionalAttention, Variant, option, register_variant

@dataclass(eq=False, repr=False)
class Near(PositionalAttention):
    near_slope: float = option(1.0, "by which scores fall")

register_variant("near", Variant(attends=Near))
register_variant("clip", Variant(attends=Near))  # timm has models of this name
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import timm, cape_plugins.timm
told = [str(one.message) for one in told if "clip" in str(one.message)]
assert any("vit_base_patch16_clip_224" in one for one in told), told
stock = timm.create_model("vit_base_patch16_clip_224", depth=1)
assert type(stock).__module__ == "timm.models.vision_transformer", type(stock)
for name in ("vit_tiny_patch4_near_32", "naflexvit_tiny_patch16_near_gap"):
    model = timm.create_model(name, depth=1, near_slope=2.0)
    assert model.blocks[0].attn.positional.near_slope == 2.0
    assert any(key.endswith("position.mark.variant_near") for key in model.state_dict())
register_variant("late", Variant(attends=Near, axes=(2,)))  # timm has read the table
for name in ("vit_tiny_patch4_late_32", "naflexvit_tiny_patch16_late_gap"):
    model = timm.create_model(name, depth=1, near_slope=3.0)
    assert model.blocks[0].attn.positional.near_slope == 3.0
assert timm.models.get_pretrained_cfg("vit_tiny_patch4_late_32").input_size == (3, 32, 32)
try:
    timm.create_model("vit_tiny_patch4_cape_32", depth=1, near_slope=2.0)
except ValueError as error:
    print(error)
"""


def test_a_variant_of_another_package_is_a_model_by_name_but_never_in_place_of_timms():
    status, told = run(sys.executable, "-c", ANOTHER_PACKAGES, cwd=ROOT)
    assert status == 0, told
    assert "near_slope" in told.splitlines()[-1]


def test_those_of_the_literature_are_for_images_or_refused_by_name(eight, create):
    """A stranger's: what is learned of one dimension is not decayed; layers may share a module."""
    for pos in ("cope", "xpos"):
        with pytest.raises(ValueError, match=f"{pos}.*kerple"):
            create("cape", pos=pos)
    for host in HOSTS:
        fourier = create("cape", host, pos="fourier")
        free = {name.rpartition("position.added.")[2] for name in fourier.no_weight_decay()}
        assert {"frequencies", "network.0.bias", "network.2.bias"} <= free
        assert not {"network.0.weight", "network.2.weight"} & free
    fourier = create("cape", pos="fourier")
    groups = timm.models.group_parameters(fourier, fourier.group_matcher())
    (stem,) = (names for names in groups.values() if "cls_token" in names)
    assert "position.added.frequencies" in stem  # what is learned at the input
    with pytest.raises(ValueError, match="mean fourier_features"):
        create("cape", pos="fourier", fourier_featurs=8)
    shared = create("cape", pos="t5_shared")
    assert sum("positional" in name for name, _ in shared.named_parameters()) == 1
    create("cape", pos="t5_shared").load_state_dict(shared.state_dict())


# what the models do


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("variant", NAMED)
def test_what_a_name_says(create, images, variant, host):
    model = create(variant, host)
    for size in [(16, 16), (160, 384)]:  # all that the patches divide
        x = images(2, 3, *size)
        for training in (True, False):
            out = model.train(training)(x)
            assert out.shape == (2, 10)
            assert out.isfinite().all()
    x = images(1, 3, 48, 32)
    assert torch.equal(model(x), model(x))
    moved = torch.allclose(model(x), model(x.roll(16, dims=2)), atol=1e-4, rtol=1e-4)
    assert moved == (variant == "nopos")  # all others see where patches are
    as_given = get(variants_by_name()[variant]["pos"], axes=2).augments is AsGiven
    model.train()
    assert torch.equal(model(x), model(x)) == as_given


def test_positions_are_added_to_the_patches_and_the_class_token_has_its_own(create):
    model, flat = create("sinpos"), create("sinpos", dynamic_img_size=False, img_size=32)
    outs = []
    for each in (model, flat):
        for parameter in each.patch_embed.parameters():
            torch.nn.init.zeros_(parameter)
        outs.append(into_blocks(each.eval(), torch.zeros(1, 3, 32, 32))[0])
    assert torch.equal(outs[0][:, :1], model.cls_token + model.cls_pos_embed)
    torch.testing.assert_close(outs[0][0, 1:], sinusoid_2d(patch_grid(2, 2), 32))
    torch.testing.assert_close(outs[1][:, 1:], outs[0][:, 1:])
    assert create("cape", no_embed_class=True).cls_pos_embed is None
    assert create("cape", class_token=False, global_pool="avg").cls_pos_embed is None


# options


def model_kwargs(*given: str) -> dict:
    """What timm's train.py makes of its option."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", default={}, action=ParseKwargs)  # as it does
    return parser.parse_args(["--model-kwargs", *given]).model_kwargs


def test_what_train_py_makes_of_model_kwargs_works(create, images):
    given = "max_global_scale=1 max_global_shift=0.25 max_local_shift=(0.1,0.2) extent=0.7"
    augmentation = create(**model_kwargs(*given.split())).position.augmentation
    assert augmentation.max_global_scale == 1
    assert augmentation.max_local_shift == (0.1, 0.2)
    for one in (given, "max_local_shift=[0.1,0.2]", "max_local_shift=0", "max_local_shift=None"):
        model = create(**model_kwargs(*one.split()))
        assert model(images(1, 3, 32, 48)).isfinite().all()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("variant", "options", "named"),
    [
        ("cape", dict(max_global_scale=0.5), "max_global_scale"),
        ("cape", dict(max_local_shift="1/14"), "max_local_shift"),
        ("cape", dict(max_local_shift=(0.1,) * 3), "max_local_shift"),
        ("sinpos", dict(extent=0.0), "extent"),
        ("cape", dict(pos="relpos"), "relpos"),
        ("cape", dict(pos="abspos"), "vit_tiny_patch16_224"),
        ("cape", dict(pos_embed="learn"), "vit_tiny_patch16_224"),
        ("ropepos", dict(embed_dim=12), "channels"),
        ("cape", dict(max_gobal_shift=0.5), "max_gobal_shift"),
        ("cape", dict(depht=3), "mean depth"),
        # what a host of images sets itself
        ("random", dict(random_range=(0.0, 1.0)), "random_range"),
        ("cape", dict(mean_normalize=False), "mean_normalize"),
        # options of other variants
        ("nopos", dict(extent=0.7), "extent"),
        ("sinpos", dict(max_local_shift=0.0), "max_local_shift"),
        # what is not handed the positions
        ("alibi", dict(attn_layer="diff"), "alibi .*DiffAttention"),
        ("alibi", dict(block_fn=timm.models.vision_transformer.ParallelScalingBlock), "block_fn"),
        ("alibi", dict(patch_drop_rate=0.5), "patch_drop_rate"),
    ],
)
def test_what_is_wrong_is_refused_by_name(create, host, variant, options, named):
    with pytest.raises((TypeError, ValueError), match=named):
        create(variant, host, **options)


@pytest.mark.parametrize(
    ("host", "variant", "options"),
    [
        ("naflexvit", "cape", dict(pos_embed_grid_size=(24, 24))),
        ("naflexvit", "cape", dict(pos_embed_interp_mode="bilinear")),
        ("naflexvit", "sinpos", dict(pos_embed_antialias=False)),
        ("naflexvit", "nopos", dict(pos_embed_ar_preserving=True)),
        ("vit", "cape", dict(use_naflex=True)),
    ],
)
def test_options_of_a_table_of_positions_are_refused(create, host, variant, options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        create(variant, host, **options)
