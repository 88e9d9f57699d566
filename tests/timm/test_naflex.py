"""NaFlexVit with computed positions: batches of images of different sizes."""

import pytest
import torch

from cape_plugins import patch_grid
from cape_plugins.timm.naflexvit import naflex_positions
from cape_plugins.timm.registry import variants_by_name
from cape_plugins.variants import get

AS_VIT = dict(class_token=True, global_pool="token", reg_tokens=0, fc_norm=False)


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


def test_coordinates_that_were_cast_are_refused_as_they_may_be_rounded(batch):
    with pytest.raises(ValueError, match="patch_coord"):
        naflex_positions(batch()["patch_coord"].bfloat16())


@pytest.mark.parametrize("given", [None, (0.2, 0.0)])
@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("vit", {}),
        ("vit", dict(extent=0.7)),
        ("naflexvit", {}),
        ("naflexvit padded", {}),
        ("naflexvit padded", dict(extent=0.7)),
        ("naflexvit padded", dict(pos_embed_ar_preserving=True)),
    ],
)
def test_the_local_shift_is_extent_over_n_of_each_axis_or_as_given(
    create, batch, images, embedded, host, options, given
):
    """N are the patches along an axis, or where the aspect ratio is kept along the longer one."""
    still = dict(max_global_shift=0.0, max_global_scale=1.0, max_local_shift=given)
    model, padded = create("cape", host.split()[0], **still, **options), host.endswith("padded")
    x = batch() if padded else images(3, 3, 64, 96)
    model.eval()(x)
    for _ in range(50):
        model.train()(x)
    moved = (torch.stack(embedded[1:]) - embedded[0]).abs().nan_to_num()  # (50, B, N, 2)
    patches = torch.tensor([[4, 6], [1, 3], [8, 2]] if padded else [[4, 6]] * 3)  # (B, 2)
    if "pos_embed_ar_preserving" in options:
        patches = patches.amax(dim=1, keepdim=True)
    bound = options.get("extent", 1.0) / patches if given is None else torch.tensor(given)
    largest = moved.amax(dim=(0, 2))  # (B, 2)
    assert ((largest <= bound + 1e-6) & (largest >= 0.9 * bound)).all()


# padding


OPTIONS = {
    "map": dict(global_pool="map"),
    "token": dict(class_token=True, global_pool="token"),
    "max": dict(reg_tokens=0, global_pool="max"),
    "aspect": dict(pos_embed_ar_preserving=True),
    "key only": dict(use_key_only_attn_mask=True),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("variant", ["cape", "cape_alibi"])
def test_an_image_in_a_padded_batch_gives_what_it_gives_alone(
    naflex, several, batch, variant, option
):
    """With options of timm's; CHECKS have every variant without."""
    model = naflex(variant, **OPTIONS[option]).eval()
    alone = torch.cat([model(image[None]) for image in several])  # as images, not as patches
    torch.testing.assert_close(model(batch(30)), alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(batch(100)), alone, atol=1e-4, rtol=1e-4)


# what NaFlexVit can do


def test_the_class_token_has_its_own_position(naflex, several):
    model = naflex(class_token=True, global_pool="token")
    assert model.embeds.cls_pos_embed.std() > 0.01
    assert "embeds.cls_pos_embed" in model.no_weight_decay()
    tokens, _ = model.eval().embeds(several[0][None])
    expected = model.embeds.cls_token + model.embeds.cls_pos_embed
    assert torch.equal(tokens[:, :1], expected)
    assert naflex("nopos", class_token=True).embeds.cls_pos_embed is None


@pytest.mark.parametrize("variant", ["nopos", "sinpos", "ropepos"])
def test_pos_drop_rate_drops_from_the_sum_of_patches_and_positions_in_training(
    naflex, images, variant
):
    model, x = naflex(variant, pos_drop_rate=0.5), images(2, 3, 64, 96)
    tokens = model.eval().embeds(x)[0]
    dropped = model.train().embeds(x)[0]
    zero = dropped == 0
    assert 0.4 < zero.float().mean() < 0.6
    torch.testing.assert_close(dropped[~zero], 2 * tokens[~zero])


@pytest.mark.parametrize("variant", ["cape", "alibi"])
def test_intermediates_of_a_batch_and_of_images(naflex, images, batch, variant):
    model, x = naflex(variant).eval(), images(2, 3, 64, 96)
    out = model.forward_intermediates(batch(), output_fmt="NLC", output_dict=True)
    assert [f.shape for f in out["image_intermediates"]] == [(3, 30, 32)] * 2
    final, maps = model.forward_intermediates(x)
    assert maps[-1].shape == (2, 32, 4, 6)
    assert torch.equal(final, model.forward_features(x))


# keeping the aspect ratio, and timm's options for its table


def test_positions_that_keep_the_aspect_ratio_are_as_far_apart_on_both_axes(batch):
    given = batch()
    positions, spans = naflex_positions(
        given["patch_coord"], given["patch_valid"], extent=0.7, keep_aspect=True
    )
    assert spans[:, 0].tolist() == [[6, 6], [3, 3], [8, 8]]
    for own, (height, width) in zip(positions, [(4, 6), (1, 3), (8, 2)], strict=True):
        shares = torch.tensor([height - 1, width - 1]) / (max(height, width) - 1)
        expected = patch_grid(height, width, extent=0.7) * shares
        torch.testing.assert_close(own[: height * width], expected)


# a ViT as a NaFlexVit


@pytest.mark.parametrize("variant", ["nopos", "cape_low", "cape_rope", "alibi"])
def test_a_vits_weights_give_what_the_vit_gives(create, load, several, batch, variant, tmp_path):
    vit = create(variant, img_size=64).eval()
    torch.save(vit.state_dict(), tmp_path / "vit.pth")
    # the training's grid, by which attention counts distances
    attends = get(variants_by_name()[variant]["pos"], axes=2).attends
    grid = {} if attends is None else dict(pos_embed_grid_size=(4, 4))
    model = load(tmp_path / "vit.pth", variant, "naflexvit", **AS_VIT, **grid).eval()
    alone = torch.cat([vit(image[None]) for image in several])
    images = torch.cat([model(image[None]) for image in several])
    torch.testing.assert_close(images, alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(batch()), alone, atol=1e-4, rtol=1e-4)


def test_a_vit_without_layer_scale_loads_into_a_naflexvit_that_has_it(
    create, load, several, tmp_path
):
    vit = create().eval()
    torch.save(vit.state_dict(), tmp_path / "vit.pth")
    model = load(tmp_path / "vit.pth", host="naflexvit", **AS_VIT).eval()  # init_values: 1e-5
    assert (model.blocks[0].ls1.gamma == 1).all()
    assert torch.equal(model.embeds.cls_pos_embed, vit.cls_pos_embed)
    for image in several:
        torch.testing.assert_close(model(image[None]), vit(image[None]), atol=1e-4, rtol=1e-4)


def test_an_image_that_the_patches_do_not_divide_is_named(naflex, images):
    with pytest.raises(ValueError, match="100 × 96"):
        naflex()(images(1, 3, 100, 96))
    assert naflex(dynamic_img_pad=True)(images(1, 3, 100, 96)).shape == (1, 10)
