"""No forward leaves anything behind for another: positions travel with the tokens."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import shared_variant
from cape_plugins.timm.vision_transformer import VisionTransformerCape
from cape_support import in_turns, replica
from timm_support import EVAS, STILL

# added at the input, turned in attention, a bias there, and random
MODELS = [("vit", name) for name in ("cape", "ropepos", "cape_alibi", "random_rope")]
MODELS += [("naflexvit", name) for name in ("cape", "cape_alibi")]
every_model = pytest.mark.parametrize(("host", "variant"), MODELS)
every_model_and_twin = pytest.mark.parametrize(
    ("host", "variant"), [*MODELS, *(("eva", EVAS[kind]) for kind in ("cat", "mixed"))]
)


def gradients(model: nn.Module) -> Tensor:
    """Those of all parameters in a row; they are forgotten."""
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def train_on_two_sizes(model: nn.Module, images, between=lambda: None) -> Tensor:
    """Two forwards, then one backward: the gradients."""
    torch.manual_seed(1)
    first = model(images(2, 3, 64, 64))
    between()
    second = model(images(2, 3, 64, 96))
    (first.square().sum() + second.square().sum()).backward()
    return gradients(model)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_layers_share_gets_its_gradients_with_checkpointing(monkeypatch, reentrant):
    """In one of a block's arguments that is a tuple, reentrant checkpointing sees no tensors."""
    shared_variant.register(monkeypatch)
    torch.manual_seed(0)
    model = VisionTransformerCape(
        pos="shared", img_size=32, patch_size=16, embed_dim=16, num_heads=2, depth=3
    )
    image, found = torch.randn(2, 3, 32, 32), []
    monkeypatch.setattr("timm.layers.config._USE_REENTRANT_CKPT", reentrant)
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model(image).square().sum().backward()
        assert all(p.grad is not None for p in model.blocks.parameters())
        found.append(gradients(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@every_model_and_twin
def test_checkpointing_and_what_comes_between_change_no_gradient(create, images, host, variant):
    model, copies = create(variant, host).train(), []
    expected = train_on_two_sizes(model, images)

    def evaluate_and_copy():
        state = torch.get_rng_state()
        with torch.no_grad():
            model.eval()(images(1, 3, 128, 32))
        model.train()
        copies.extend([copy.deepcopy(model), pickle.loads(pickle.dumps(model))])
        for one in copies:
            one(images(1, 3, 32, 96))
        torch.set_rng_state(state)

    for between in (lambda: None, evaluate_and_copy):
        model.set_grad_checkpointing()
        found = train_on_two_sizes(model, images, between)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for one in copies:
        x = images(1, 3, 64, 96)
        torch.testing.assert_close(one.eval()(x), model.eval()(x))


@every_model_and_twin
def test_two_threads_on_one_model_or_on_replicas_of_data_parallel(create, images, host, variant):
    rotary = host == "eva"  # timm's own in evaluation
    model = create(variant, host, **STILL if rotary else {}).train(rotary)
    inputs = [images(1, 3, 128, 128), images(1, 3, 64, 256)]  # as many patches
    expected = [model(x) for x in inputs]
    calls = [lambda model, x=x: model(x) for x in inputs]
    # replicas of timm's rotary models are timm's
    both = [[model, model]] if rotary else [[model, model], [replica(model), replica(model)]]
    for models in both:
        torch.testing.assert_close(in_turns(models, calls), expected, rtol=1e-5, atol=1e-5)
