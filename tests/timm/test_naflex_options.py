"""NaFlexVitCape's aspect ratio, the options it refuses, and ViTs that become NaFlexVits."""

import pytest
import torch

timm = pytest.importorskip("timm")

from timm.data.naflex_dataset import NaFlexCollator  # noqa: E402
from timm.data.naflex_transforms import Patchify  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins import patch_grid  # noqa: E402
from cape_plugins.timm.naflexvit import naflex_positions  # noqa: E402
from cape_plugins.timm.registry import variants_by_name  # noqa: E402

VARIANTS = tuple(variants_by_name())
SMALL = dict(depth=2, num_classes=10)


def create(variant: str = "cape", **kwargs) -> torch.nn.Module:
    return timm.create_model(f"naflexvit_tiny_patch16_{variant}_gap", **{**SMALL, **kwargs})


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [(64, 96), (16, 48), (128, 32)]  # grids of 4 × 6, 1 × 3 and 8 × 2
    return [torch.randn(3, *size, generator=generator) for size in sizes]


def batch(max_patches: int = 30) -> dict:
    patchify = Patchify(16)
    return NaFlexCollator(max_patches)([(patchify(image), 0) for image in images()])[0]


# keeping the aspect ratio, and timm's options for its table


def test_positions_that_keep_the_aspect_ratio_are_as_far_apart_on_both_axes():
    given = batch()
    positions, spans = naflex_positions(
        given["patch_coord"], given["patch_valid"], extent=0.7, keep_aspect=True
    )
    assert spans[:, 0].tolist() == [[6, 6], [3, 3], [8, 8]]
    for own, (height, width) in zip(positions, [(4, 6), (1, 3), (8, 2)], strict=True):
        longer = max(height, width)
        square = patch_grid(longer, longer, extent=0.7).reshape(longer, longer, 2)
        grid = own[: height * width].reshape(height, width, 2)
        assert torch.equal(grid.amax((0, 1)), -grid.amin((0, 1)))  # both around 0
        step = square[1, 0, 0] - square[0, 0, 0]
        for axis in (0, 1):
            assert torch.allclose(grid.diff(dim=axis)[..., axis], step)
        assert grid.max() == pytest.approx(0.7)


@pytest.mark.parametrize("variant", ["sinpos", "cape"])
def test_ar_preserving_tells_images_of_other_shapes_apart_padded_or_alone(variant):
    model = create(variant).eval()
    keeps = create(variant, pos_embed_ar_preserving=True).eval()
    keeps.load_state_dict(model.state_dict())
    alone = torch.cat([keeps(image[None]) for image in images()])
    torch.testing.assert_close(keeps(batch(30)), alone, atol=1e-5, rtol=0)
    assert not torch.allclose(alone, model(batch(30)), atol=1e-3)
    square = images()[0][None, :, :64, :64]
    torch.testing.assert_close(keeps(square), model(square), atol=1e-6, rtol=0)
    assert keeps.train()(batch()).isfinite().all()


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("cape", dict(pos_embed_grid_size=(24, 24))),
        ("cape", dict(pos_embed_interp_mode="bilinear")),
        ("sinpos", dict(pos_embed_antialias=False)),
        ("sinpos", dict(pos_embed_use_grid_sample=True)),
        ("nopos", dict(pos_embed_ar_preserving=True)),
    ],
)
def test_options_of_timms_table_are_refused(variant, options):
    (name,) = options
    with pytest.raises(
        ValueError, match=f"{name} = .* is for a table of positions, which {variant}"
    ):
        create(variant, **options)


# a ViT as a NaFlexVit


@pytest.mark.parametrize("variant", VARIANTS)
def test_timms_use_naflex_gives_what_the_vit_gives(variant, tmp_path):
    name, shape = f"vit_tiny_patch16_{variant}_224", dict(**SMALL, img_size=64)
    vit = timm.create_model(name, **shape).eval()
    torch.save(vit.state_dict(), tmp_path / "vit.pth")
    model = timm.create_model(
        name,
        use_naflex=True,
        pretrained=True,
        pretrained_cfg_overlay=dict(file=str(tmp_path / "vit.pth"), num_classes=10),
        **shape,
    ).eval()
    assert type(model).__name__ == "NaFlexVitCape"
    for image in images():
        torch.testing.assert_close(model(image[None]), vit(image[None]), atol=1e-5, rtol=0)
    alone = torch.cat([vit(image[None]) for image in images()])
    torch.testing.assert_close(model(batch()), alone, atol=1e-5, rtol=0)


def test_use_naflex_takes_the_options_of_a_vit():
    name = "vit_tiny_patch16_cape_224"
    options = dict(global_pool="avg", class_token=False, init_values=1e-4, dynamic_img_size=True)
    model = timm.create_model(name, use_naflex=True, max_global_scale=1.2, **options, **SMALL)
    assert model.embeds.position.max_global_scale == 1.2
    assert isinstance(model.fc_norm, torch.nn.LayerNorm)
    assert not isinstance(timm.create_model(name, use_naflex=False, **SMALL), type(model))
    with pytest.raises(ValueError, match="no_embed_class"):
        timm.create_model(name, use_naflex=True, no_embed_class=True, **SMALL)


def test_a_vit_without_layer_scale_loads_into_a_naflexvit_that_has_it(tmp_path):
    vit = timm.create_model("vit_tiny_patch16_cape_224", **SMALL).eval()
    torch.save(vit.state_dict(), tmp_path / "vit.pth")
    model = create(  # its init_values are 1e-5
        pretrained=True,
        pretrained_cfg_overlay=dict(file=str(tmp_path / "vit.pth"), num_classes=10),
        class_token=True,
        global_pool="token",
        reg_tokens=0,
        fc_norm=False,
    ).eval()
    assert (model.blocks[0].ls1.gamma == 1).all()
    assert torch.equal(model.embeds.cls_pos_embed, vit.cls_pos_embed)
    for image in images():
        torch.testing.assert_close(model(image[None]), vit(image[None]), atol=1e-5, rtol=0)
