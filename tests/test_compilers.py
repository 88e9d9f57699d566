"""Compilers, exporters and torch.func get plain operations, in one graph, and the same results."""

import io
import math

import pytest
import torch
from torch import Tensor, nn

from cape_plugins import testing
from cape_support import OURS, Layer, places, seeded

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

MASK = torch.tensor([[[True] * 6], [[True] * 4 + [False] * 2]])
HALF = torch.bfloat16


# what is added, how positions are augmented and what attends go together as the table says
EVALUATED = [("abspos", 1), ("cape", 1), ("sinpos", 2), ("random_rope", 1), ("relpos", 1)]
EVALUATED += [("rope", 2), ("alibi", 1), ("cape_alibi", 2)]


@pytest.mark.parametrize(("pos", "axes"), EVALUATED)
def test_a_model_in_evaluation_compiles_in_one_graph_for_any_size(pos, axes):
    testing.check_compile(pos, axes)


@pytest.mark.parametrize(("pos", "axes"), [("cape", 1), ("random", 2), ("cape_rope", 2)])
def test_a_layer_in_training_compiles_in_one_graph_and_draws_at_each_step(pos, axes):
    torch._dynamo.reset()
    layer, content = Layer(pos, axes), torch.randn(2, 6, 12)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    first, second = (compiled(content, places(axes, 6, 4), MASK) for _ in range(2))
    assert first.isfinite().all()
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("pos", "axes"), [("rope", 2), ("relpos", 1), ("alibi", 1)])
def test_a_compiled_training_step_in_half_precision_is_the_same(pos, axes):
    torch._dynamo.reset()
    layer = Layer(pos, axes).to(HALF)
    content = torch.randn(2, 6, 12, dtype=HALF, requires_grad=True)
    weights = [content, *layer.attention.parameters()]
    found, expected = (
        torch.autograd.grad(step(content, places(axes, 6, 4), MASK).sum(), weights)
        for step in (torch.compile(layer, backend="aot_eager", fullgraph=True), layer)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


EXPORTED = [("cape", 1), ("random", 1), ("sinpos", 2), ("relpos", 1), ("rope", 2), ("alibi", 1)]


def example(axes: int, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    positions = torch.rand(batch, tokens, 2)
    if axes == 1:
        positions = positions[:, :1, 0] + torch.arange(tokens)
    positions[1, 4:] = math.nan
    return torch.randn(batch, tokens, 12), positions


@pytest.mark.parametrize(("pos", "axes"), EXPORTED)
def test_an_exported_model_takes_any_size(pos, axes):
    layer = Layer(pos, axes).eval()
    sizes = {0: torch.export.Dim("batch", min=2, max=99), 1: torch.export.Dim("n", min=6, max=99)}
    exported = torch.export.export(layer, example(axes, 2, 7), dynamic_shapes=(sizes, sizes))
    other = example(axes, 3, 11)
    torch.testing.assert_close(exported.module()(*other), layer(*other))
    if pos == "alibi":
        runtime, file = pytest.importorskip("onnxruntime"), io.BytesIO()
        torch.onnx.export(exported, dynamo=True, verbose=False).save(file)
        session = runtime.InferenceSession(file.getvalue())
        names = [each.name for each in session.get_inputs()]
        (out,) = session.run(None, dict(zip(names, (x.numpy() for x in other), strict=True)))
        torch.testing.assert_close(torch.from_numpy(out), layer(*other), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_gradients_per_sample_in_training(pos, axes):
    """As in differentially private training: each sample has weights of its own to vary."""
    layer, embed = Layer(pos, axes), nn.Linear(3, 12)
    weights = dict(embed.named_parameters())
    content, positions = torch.randn(4, 6, 3), places(axes)

    def loss(weights, content, generator=None):
        x = torch.func.functional_call(embed, weights, content)[None]
        return layer(x, positions, generator=generator).square().sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0, None), randomness="different")
    for generator in (None, seeded()):
        found = per_sample(weights, content, generator)["weight"]
        assert found.shape == (4, 12, 3)
        assert found.isfinite().all()
    same = content[:1].expand(4, -1, -1)  # of one sample, too, each draws its own positions
    found = per_sample(weights, same, None)["weight"]
    assert torch.allclose(
        found, found[:1].expand_as(found), rtol=1e-4, atol=1e-4
    ) != pos.startswith(("cape", "random", "pose"))


ATTENDING = [(pos, axes) for pos, axes in OURS if pos in ("rope", "relpos", "alibi")]


@pytest.mark.parametrize(("pos", "axes"), ATTENDING)
def test_batched_gradients_and_vmap_in_half_precision(pos, axes):
    layer, where = Layer(pos, axes).to(HALF).eval(), places(axes, 6, 4)
    content = torch.randn(2, 6, 12, dtype=HALF, requires_grad=True)
    out = layer(content, where)
    grads = torch.randn(3, *out.shape).to(HALF)
    batched = torch.autograd.grad(out, content, grads, retain_graph=True, is_grads_batched=True)
    for found, grad in zip(batched[0], grads, strict=True):
        (alone,) = torch.autograd.grad(out, content, grad, retain_graph=True)
        torch.testing.assert_close(found, alone, rtol=0.02, atol=0.02)
    with torch.no_grad():  # vmap of CPU attention has no gradient of what is added to scores
        one_by_one = torch.vmap(lambda x, p: layer(x[None], p[None])[0])(content, where)
    torch.testing.assert_close(one_by_one, out, rtol=0.02, atol=0.02)
