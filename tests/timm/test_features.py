"""Features in integrations/timm/README.md: code prints what it says, sizes and positions hold."""

import pytest
import timm
import torch
from timm.models._features import FeatureGetterNet

from cape_support import ROOT, blocks
from timm_support import EVAS

PAGE = blocks(ROOT / "integrations" / "timm" / "README.md", "python")
BLOCKS = [one for one in PAGE if "features_only" in one or "forward_intermediates" in one]
NAMES = ("vit_tiny_patch16_cape_low_224", "naflexvit_tiny_patch16_ropepos_gap", *EVAS.values())
SMALL = dict(embed_dim=64, depth=2, num_heads=2)


def features(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, features_only=True, out_indices=[1], **SMALL, **options).eval()


def test_the_code_of_the_page_prints_what_stands_below_it(capsys):
    names: dict = {}
    for block in BLOCKS:
        exec(block, names)
        says = [line[2:] for line in block.splitlines() if line.startswith("# ")]
        assert capsys.readouterr().out.splitlines() == says
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("name", NAMES)
def test_maps_have_a_value_for_each_patch_of_images_of_any_size(name, images):
    own = {"dynamic_img_size": True} if name in EVAS.values() else {}
    for height, width in [(64, 96), (128, 32)]:
        (found,) = features(name, **own)(images(1, 3, height, width))
        assert found.shape == (1, 64, height // 16, width // 16)
    (found,) = features(name, dynamic_img_pad=True, **own)(images(1, 3, 60, 90))
    assert found.shape == (1, 64, 4, 6)


@pytest.mark.parametrize("variant", ["cape_low", "ropepos"])
def test_the_weights_of_a_trained_classifier_are_taken(variant, images, tmp_path):
    name, x = f"vit_tiny_patch16_{variant}_224", images(1, 3, 64, 96)
    classifier = timm.create_model(name, num_classes=7, **SMALL).eval()
    torch.save({"state_dict": classifier.state_dict()}, tmp_path / "last.pth.tar")
    given = dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(tmp_path / "last.pth.tar")))
    backbone = features(name, **given)
    assert isinstance(backbone, FeatureGetterNet)
    expected = classifier.forward_intermediates(x, indices=[1], intermediates_only=True)
    torch.testing.assert_close(backbone(x), expected)
