"""Models of the hosts on a GPU against the CPU, and compiled ones against eager ones."""

import importlib.util

import pytest
import torch

pytest.importorskip("tabulate")

from hosts import CASES, builder, names_of

# case → sizes that take the CPU well under a second
SMALL = {
    "vit_small": dict(size="tiny", depth=2, image=96),
    "wmt_base": dict(layers=2, dim=128, heads=4, words=500, length=33),
    "asr_12": dict(layers=2, dim=64, heads=4, seconds=2),
    "conformer_12": dict(layers=2, dim=64, heads=4, seconds=2),
}
PACKAGES = {"timm": "timm", "fairseq": "fairseq", "espnet": "espnet2"}
HERE = [case for case in SMALL if importlib.util.find_spec(PACKAGES[CASES[case][0]])]
# a twin of every way in which timm's models place their tokens
TWINS = (
    "vit_small_patch16_dinov3_cape",
    "vit_small_patch16_rope_cape_224",
    "vit_small_patch16_rope_mixed_cape_224",
    "vit_small_patch16_rope_mixed_ape_cape_224",
    "eva02_tiny_patch14_cape_224",
    "vit_pe_core_tiny_patch16_cape_384",
    "naflexvit_tiny_patch16_cape_gap",
)


@pytest.mark.parametrize(
    ("case", "pos"), [(case, pos) for case in HERE for pos in names_of(CASES[case][0])]
)
def test_loss_and_gradients_in_evaluation_are_the_cpus(case, pos, device, assert_near):
    losses, gradients = [], []
    for where in ("cpu", device):
        torch.manual_seed(0)
        model, loss = builder(case, 3, where, **SMALL[case])(pos)
        model.to(where).eval()  # without dropout and augmentation
        value = loss(model)
        value.backward()
        losses.append(value)
        each = (w.grad.flatten() for w in model.parameters() if w.grad is not None)
        gradients.append(torch.cat([grad.cpu() for grad in each]))
    assert_near(losses[1], losses[0], 1e-5)
    assert_near(gradients[1], gradients[0], 2e-4)


def model_and_images(name: str):
    timm = pytest.importorskip("timm")
    import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

    model = timm.create_model(name, num_classes=5).eval()
    return model, torch.randn(2, *model.default_cfg["input_size"])


@pytest.mark.parametrize("name", TWINS)
@torch.no_grad()
def test_timms_models_with_cape_give_what_the_cpu_gives(name, device, assert_near):
    model, images = model_and_images(name)
    wanted = model(images)
    assert_near(model.to(device)(images.to(device)), wanted, 2e-4)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_cape_rope_224", "vit_tiny_patch16_cape_alibi_224", TWINS[0]]
)
@torch.no_grad()
def test_compiled_models_are_one_graph_and_give_what_eager_ones_give(name, cuda, assert_near):
    model, images = model_and_images(name)
    model, images = model.to(cuda), images.to(cuda)
    assert_near(torch.compile(model, fullgraph=True)(images), model(images), 2e-3)
    torch.compiler.reset()
