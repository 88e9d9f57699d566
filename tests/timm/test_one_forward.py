"""No forward leaves anything behind for another: positions travel with the tokens."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn

from cape_support import replica
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


def in_threads(models: list[nn.Module], inputs: list[Tensor], times: int) -> list[list[Tensor]]:
    """What each model makes of its input, several times, while the other runs."""
    found: list[list[Tensor]] = [[] for _ in models]
    start = threading.Barrier(len(models))

    def run(index: int) -> None:
        start.wait()
        found[index] += [models[index](inputs[index]) for _ in range(times)]

    threads = [threading.Thread(target=run, args=[index]) for index in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@every_model_and_twin
def test_two_threads_on_one_model(create, images, host, variant):
    rotary = host == "eva"  # timm's own in evaluation
    model = create(variant, host, **STILL if rotary else {}).train(rotary).requires_grad_(False)
    inputs = [images(1, 3, 128, 128), images(1, 3, 64, 256)]  # as many patches
    expected = [model(x) for x in inputs]
    for outputs, right in zip(in_threads([model, model], inputs, 30), expected, strict=True):
        assert len(outputs) == 30
        for output in outputs:
            torch.testing.assert_close(output, right, rtol=1e-5, atol=1e-5)


@every_model
def test_replicas_of_data_parallel(create, images, host, variant):
    model = create(variant, host).eval()
    inputs = [images(1, 3, 128, 128), images(1, 3, 64, 256)]
    expected = [model(x) for x in inputs]
    sum(5 * output.square().sum() for output in expected).backward()
    right = gradients(model)
    found = in_threads([replica(model), replica(model)], inputs, 5)
    for outputs, output in zip(found, expected, strict=True):
        torch.testing.assert_close(outputs, [output] * 5, rtol=1e-5, atol=1e-5)
    sum(output.square().sum() for outputs in found for output in outputs).backward()
    torch.testing.assert_close(gradients(model), right, rtol=1e-4, atol=1e-4)
