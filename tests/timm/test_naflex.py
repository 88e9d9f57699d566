"""NaFlexVit with computed positions: batches of images of different sizes."""

import math

import pytest
import torch
from PIL import Image
from timm.data import create_dataset, create_naflex_loader

from cape_plugins import patch_grid
from cape_plugins.timm.naflexvit import naflex_positions
from cape_plugins.timm.registry import variants_by_name

VARIANTS = tuple(variants_by_name())


@pytest.fixture
def naflex(create):
    """variant, options → a small NaFlexVit."""
    return lambda variant="cape", **options: create(variant, "naflexvit", **options)


# positions


def test_each_image_has_the_positions_of_its_own_grid(batch):
    given = batch()
    positions, grids = naflex_positions(given["patch_coord"], given["patch_valid"], extent=0.7)
    assert grids[:, 0].tolist() == [[4, 6], [1, 3], [8, 2]]
    for own, (height, width) in zip(positions, grids[:, 0].tolist(), strict=True):
        assert torch.equal(own[: height * width], patch_grid(height, width, extent=0.7))
        assert own[height * width :].isnan().all()


STILL = dict(max_global_shift=0.0, max_local_shift=0.0, max_global_scale=1.0)


@pytest.fixture
def augmented(create, batch, images, embedded):
    """host, settings, forwards → (forwards, B, N, 2) positions in training, (B, N, 2) those in
    evaluation, and the patches per axis, (B, 1, 2)."""

    def read(host: str, forwards: int = 1, **settings):
        model = create("cape", host.split()[0], **{**STILL, **settings})
        given = batch() if host.endswith("padded") else images(3, 3, 64, 96)
        model.eval()(given)
        model.train()
        for _ in range(forwards):
            model(given)
        positions = embedded[0].expand(3, -1, -1)
        grids = torch.tensor([[4, 6], [1, 3], [8, 2]] if "padded" in host else [[4, 6]] * 3)
        return torch.stack(embedded[1:]), positions, grids[:, None]

    return read


every_host = pytest.mark.parametrize("host", ["vit", "naflexvit", "naflexvit padded"])


@every_host
@pytest.mark.parametrize("extent", [1.0, 0.7])
def test_the_default_of_the_local_shift_is_extent_over_n_of_each_axis(augmented, host, extent):
    found, positions, grids = augmented(host, 50, max_local_shift=None, extent=extent)
    largest = (found - positions).abs().nan_to_num().amax(dim=(0, 2), keepdim=True)[0]
    assert (largest <= extent / grids + 1e-6).all()
    assert (largest > 0.9 * extent / grids).all()


def test_where_the_aspect_ratio_is_kept_it_is_one_over_the_longer_side(augmented):
    options = dict(max_local_shift=None, pos_embed_ar_preserving=True)
    found, positions, grids = augmented("naflexvit padded", 50, **options)
    largest = (found - positions).abs().nan_to_num().amax(dim=(0, 2), keepdim=True)[0]
    longer = grids.amax(dim=2, keepdim=True)
    assert ((largest <= 1 / longer + 1e-6) & (largest > 0.9 / longer)).all()


@every_host
def test_a_local_shift_of_each_axis(augmented, host):
    found, positions, _ = augmented(host, max_local_shift=(0.2, 0.0))
    shifts = (found - positions).abs().nan_to_num()
    assert 0.15 < shifts[..., 0].max() <= 0.2 + 1e-6
    assert shifts[..., 1].max() < 1e-6


@every_host
def test_shift_and_scale_are_drawn_once_per_image(augmented, host):
    (moved,), positions, grids = augmented(host, max_global_shift=0.5, max_global_scale=1.4)
    scales = []
    for before, after, grid in zip(positions, moved, grids, strict=True):
        n = int(grid.prod())
        scale = (after[n - 1, 1] - after[0, 1]) / 2  # the width ran from -1 to 1
        shift = after[0] / scale - before[0]
        torch.testing.assert_close(after[:n], (before[:n] + shift) * scale, atol=1e-5, rtol=0)
        assert 1 / 1.4 - 1e-5 <= scale <= 1.4 + 1e-5
        assert shift.abs().max() <= 0.5 + 1e-5
        scales.append(float(scale))
    assert len(set(scales)) == 3


# padding


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(global_pool="map"),
        dict(class_token=True, global_pool="token"),
        dict(reg_tokens=0, global_pool="max"),
        dict(pos_embed_ar_preserving=True),
        dict(attention_logn=20),
        dict(attention_logn=20, use_key_only_attn_mask=True),
    ],
    ids=["avg", "map", "token", "max", "aspect", "logn", "logn, key only"],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_in_a_padded_batch_gives_what_it_gives_alone(
    naflex, several, batch, variant, options
):
    if variant == "nopos" and "pos_embed_ar_preserving" in options:
        pytest.skip("nopos refuses it")
    model = naflex(variant, **options).eval()
    alone = torch.cat([model(image[None]) for image in several])  # as images, not as patches
    torch.testing.assert_close(model(batch(30)), alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(batch(100)), alone, atol=1e-4, rtol=1e-4)


def test_what_padding_holds_changes_nothing(naflex, batch):
    model, given = naflex().eval(), batch()
    padding = ~given["patch_valid"]
    dirty = {
        **given,
        "patches": given["patches"].masked_fill(padding[..., None], 1e3),
        "patch_coord": given["patch_coord"].masked_fill(padding[..., None], 99),
    }
    torch.testing.assert_close(model(dirty), model(given), atol=1e-4, rtol=1e-4)


def test_no_gradient_reaches_padding(naflex, batch):
    model, given = naflex(), batch()
    given["patches"].requires_grad_()
    model(given).sum().backward()
    assert given["patches"].grad[~given["patch_valid"]].abs().max() == 0
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


# what NaFlexVit can do


def test_the_class_token_has_its_own_position(naflex, several):
    model = naflex(class_token=True, global_pool="token")
    assert model.embeds.cls_pos_embed.std() > 0.01
    assert "embeds.cls_pos_embed" in model.no_weight_decay()
    tokens, _ = model.eval().embeds(several[0][None])
    expected = model.embeds.cls_token + model.embeds.cls_pos_embed
    assert torch.equal(tokens[:, :1], expected)
    assert naflex("nopos", class_token=True).embeds.cls_pos_embed is None


def test_dropout_comes_after_the_positions(naflex, several):
    tokens, _ = naflex("sinpos", pos_drop_rate=0.5).train().embeds(several[0][None])
    assert 0.4 < (tokens[:, 4:] == 0).float().mean() < 0.6


@pytest.mark.parametrize("variant", ["cape", "alibi"])
def test_intermediates_of_a_batch_and_of_images(naflex, images, batch, variant):
    model, x = naflex(variant).eval(), images(2, 3, 64, 96)
    out = model.forward_intermediates(batch(), output_fmt="NLC", output_dict=True)
    assert [f.shape for f in out["image_intermediates"]] == [(3, 30, 32)] * 2
    final, maps = model.forward_intermediates(x)
    assert maps[-1].shape == (2, 32, 4, 6)
    assert torch.equal(final, model.forward_features(x))


def test_patch_drop_rate_and_gradient_checkpointing(naflex, batch):
    model = naflex(patch_drop_rate=0.5).train()
    model.set_grad_checkpointing()
    out = model(batch())
    out.sum().backward()
    assert out.isfinite().all()


# keeping the aspect ratio, and timm's options for its table


def test_positions_that_keep_the_aspect_ratio_are_as_far_apart_on_both_axes(batch):
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


@pytest.mark.parametrize("variant", ["sinpos", "cape", "alibi"])
def test_ar_preserving_tells_images_of_other_shapes_apart(naflex, images, batch, variant):
    model = naflex(variant).eval()
    keeps = naflex(variant, pos_embed_ar_preserving=True).eval()
    keeps.load_state_dict(model.state_dict())
    assert not torch.allclose(keeps(batch(30)), model(batch(30)), atol=1e-3)
    square = images(1, 3, 64, 64)
    torch.testing.assert_close(keeps(square), model(square), atol=1e-4, rtol=1e-4)
    assert keeps.train()(batch()).isfinite().all()


# a ViT as a NaFlexVit


@pytest.mark.parametrize("variant", VARIANTS)
def test_timms_use_naflex_gives_what_the_vit_gives(create, load, several, batch, variant, tmp_path):
    vit = create(variant, img_size=64).eval()
    torch.save(vit.state_dict(), tmp_path / "vit.pth")
    model = load(tmp_path / "vit.pth", variant, use_naflex=True, img_size=64).eval()
    assert type(model).__name__ == "NaFlexVitCape"
    alone = torch.cat([vit(image[None]) for image in several])
    images = torch.cat([model(image[None]) for image in several])
    torch.testing.assert_close(images, alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(batch()), alone, atol=1e-4, rtol=1e-4)


def test_use_naflex_takes_the_options_of_a_vit(create):
    options = dict(global_pool="avg", class_token=False, init_values=1e-4, dynamic_img_size=True)
    model = create(use_naflex=True, max_global_scale=1.2, **options)
    assert model.embeds.position.settings.max_global_scale == 1.2
    assert isinstance(model.fc_norm, torch.nn.LayerNorm)
    assert not isinstance(create(use_naflex=False), type(model))


def test_a_vit_without_layer_scale_loads_into_a_naflexvit_that_has_it(
    create, load, several, tmp_path
):
    vit = create().eval()
    torch.save(vit.state_dict(), tmp_path / "vit.pth")
    as_vit = dict(class_token=True, global_pool="token", reg_tokens=0, fc_norm=False)
    model = load(tmp_path / "vit.pth", host="naflexvit", **as_vit).eval()  # init_values: 1e-5
    assert (model.blocks[0].ls1.gamma == 1).all()
    assert torch.equal(model.embeds.cls_pos_embed, vit.cls_pos_embed)
    for image in several:
        torch.testing.assert_close(model(image[None]), vit(image[None]), atol=1e-4, rtol=1e-4)


def test_an_image_that_the_patches_do_not_divide_is_named(naflex, images):
    with pytest.raises(ValueError, match="100 × 96 is not divisible by the patch size"):
        naflex()(images(1, 3, 100, 96))
    assert naflex(dynamic_img_pad=True)(images(1, 3, 100, 96)).shape == (1, 10)


# timm's loader


@pytest.fixture
def folder(tmp_path):
    """12 JPEGs of six sizes."""
    generator = torch.Generator().manual_seed(0)
    for index in range(12):
        path = tmp_path / ("even", "odd")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        height, width = 48 + 16 * (index % 3), 48 + 32 * (index % 2)
        pixels = torch.randint(256, (height, width, 3), generator=generator)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(path)
    return tmp_path


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batches_of_timms_naflex_loader_work(naflex, folder, training):
    loader = create_naflex_loader(
        create_dataset("", root=str(folder), is_training=training),
        patch_size=16,
        train_seq_lens=(9, 16),
        max_seq_len=16,
        batch_size=4,
        is_training=training,
        num_workers=0,
        persistent_workers=False,
        use_prefetcher=False,
        pin_memory=False,
    )
    model = naflex(num_classes=2).train(training)
    shapes = []
    for given, target in loader:
        loss = torch.nn.functional.cross_entropy(model(given), target)
        assert math.isfinite(loss.item())
        loss.backward()
        shapes.append(tuple(given["patches"].shape[:2]))
    assert sum(images for images, _ in shapes) >= 8
    assert {patches for _, patches in shapes} <= {9, 16}
