"""Position tables at other sizes, without the antialiasing that timm has and the paper had not."""

import pytest
import torch
import torch.nn.functional as F

timm = pytest.importorskip("timm")

from timm.layers import resample_abs_pos_embed  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import abspos_table  # noqa: E402


def create(name: str = "vit_tiny_patch16_224", **kwargs) -> torch.nn.Module:
    torch.manual_seed(0)
    small = dict(depth=1, embed_dim=32, num_heads=2, num_classes=10, dynamic_img_size=True)
    model = timm.create_model(name, img_size=16, patch_size=4, **small, **kwargs).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # an untrained model hardly looks at positions
    return model


def test_antialiasing_changes_the_patches_and_spares_the_class_token():
    table = torch.randn(1, 1 + 36, 8, generator=torch.Generator().manual_seed(0))
    smaller = {a: resample_abs_pos_embed(table, [4, 4], [6, 6], antialias=a) for a in (0, 1)}
    assert not torch.allclose(smaller[0], smaller[1])
    expected = F.interpolate(
        table[0, 1:].T.reshape(1, 8, 6, 6), size=(4, 4), mode="bicubic", antialias=False
    )
    torch.testing.assert_close(smaller[0][0, 1:], expected[0].flatten(1).T)
    for resized in smaller.values():
        assert torch.equal(resized[:, :1], table[:, :1])


@pytest.mark.parametrize("options", [{}, dict(reg_tokens=2), dict(no_embed_class=True)])
def test_the_model_uses_the_resized_table_at_every_size(options):
    model, plain = create(**options), create(**options)
    abspos_table.without_antialias(model)
    prefix = 0 if "no_embed_class" in options else plain.num_prefix_tokens
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for height, width in ((8, 8), (8, 12), (32, 32), (16, 16)):
            images, grid = x[:, :, :height, :width], (height // 4, width // 4)
            by_hand = create(**options)
            by_hand.pos_embed.data = resample_abs_pos_embed(
                *(plain.pos_embed.data, grid, [4, 4], prefix), antialias=False
            )
            by_hand.patch_embed.grid_size = grid
            out = model(images)
            torch.testing.assert_close(out, by_hand(images))
            # enlarged tables differ too: PyTorch's antialiased cubic has another coefficient
            assert torch.allclose(out, plain(images), atol=1e-5) == (height == 16)


@pytest.mark.parametrize("name", ["vit_tiny_patch4_cape_32", "vit_small_patch16_rope_224"])
def test_models_without_a_table_are_refused(name):
    model = create(name)
    assert not abspos_table.has_table(model)
    with pytest.raises(ValueError, match="has no position table"):
        abspos_table.without_antialias(model)
