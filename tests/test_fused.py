"""What is there for speed alone: its switch, the bits of plain operations, what it saves."""

import runpy
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cape_plugins import Positions, Sizes, fused
from cape_plugins.fused import constants
from cape_plugins.rotary import Rotary, rotate
from cape_support import OURS, Layer, places, seeded

BATCH, HEADS, TOKENS, DIM = 2, 3, 10, 8
HALF = [torch.bfloat16, torch.float16]


# The switch


@pytest.mark.parametrize(("value", "on"), [("0", False), ("1", True), (None, True)])
def test_the_environment_turns_the_folder_off(monkeypatch, value, on):
    monkeypatch.delenv("CAPE_PLUGINS_FUSED", raising=False)
    if value is not None:
        monkeypatch.setenv("CAPE_PLUGINS_FUSED", value)
    assert runpy.run_path(fused.guard.__file__)["usable"](torch.zeros(1)) == on


def own_gradients(out: Tensor) -> set[str]:
    """Nodes of the graph that are no operations of PyTorch's."""
    found, todo, seen = set(), [out.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.add(type(node).__name__)
        todo += [each for each, _ in node.next_functions]
    return found


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_turned_off_nothing_has_a_gradient_of_its_own(monkeypatch, pos, axes, on):
    monkeypatch.setattr(fused.guard, "ON", on)
    layer = Layer(pos, axes).bfloat16()
    content = torch.randn(2, 6, 12, dtype=torch.bfloat16, requires_grad=True)
    found = own_gradients(layer(content, places(axes, 6, 4)))
    kinds = ("sinpos", "cape", "random", "relpos", "rope", "pose")
    piece = pos.startswith(kinds) and pos != "cape_alibi"
    assert bool(found) == (on and piece)


@pytest.mark.parametrize(
    ("dtype", "training"),
    [(torch.float64, True), (torch.float32, False), (HALF[0], True), (HALF[1], False)],
)
@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_every_variant_gives_the_bits_of_plain_operations(pos, axes, training, dtype, monkeypatch):
    layer = Layer(pos, axes).to(dtype).train(training)
    content = torch.randn(2, 6, 12, dtype=dtype, requires_grad=True)
    mask = torch.tensor([[[True] * 6], [[True] * 4 + [False] * 2]])

    def results() -> list[Tensor]:
        out = layer(content, places(axes, 6, 4), mask, generator=seeded())
        return [out, *torch.autograd.grad(out.float().square().sum(), content)]

    found = results()
    monkeypatch.setattr(fused.guard, "ON", False)
    for one, other in zip(found, results(), strict=True):
        # the sum of relative scores and a gradient's sums have another order
        same = one is found[0] and not pos.startswith("relpos")
        within = 0.0 if same else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(one, other, rtol=within, atol=100 * within)


# Constants


class Count(TorchDispatchMode):
    """How often each operation runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.operations[operation.overloadpacket] += 1
        return operation(*args, **(kwargs or {}))


def ramp(steps: int, device: torch.device) -> Tensor:
    return torch.arange(float(steps), device=device)


def cape(scale: float) -> Positions:
    bounds = dict(max_global_shift=1.0, max_local_shift=0.5)
    return Positions("cape", dim=8, frequency_scale=scale, **bounds)


def embed(scale: float) -> Tensor:
    return cape(scale)(torch.zeros(2, 5, 8), torch.arange(5.0)[None])[0]


def makes_frequencies(scale: float) -> bool:
    with Count() as count:
        embed(scale)
    return bool(count.operations[torch.ops.aten.pow])


def test_an_embedding_makes_its_own_in_the_first_forward_alone(monkeypatch):
    assert makes_frequencies(1.25)
    assert not makes_frequencies(1.25)
    assert makes_frequencies(1.375)
    monkeypatch.setattr(fused.guard, "ON", False)
    assert makes_frequencies(1.25)


def test_those_of_inference_mode_serve_a_later_training():
    with torch.inference_mode():
        embed(1.5)
    assert not makes_frequencies(1.5)
    positions = torch.arange(5.0)[None].requires_grad_()
    cape(1.5)(torch.zeros(2, 5, 8), positions)[0].square().sum().backward()
    assert positions.grad.isfinite().all()


def test_fake_compiled_and_transformed_code_leaves_none_behind():
    with FakeTensorMode():
        assert isinstance(embed(1.625), FakeTensor)
    assert not isinstance(embed(1.625), FakeTensor)
    positions = torch.arange(10.0).view(2, 1, 5)
    torch.compile(cape(1.75), backend="aot_eager")(torch.zeros(2, 5, 8), positions[0])
    assert makes_frequencies(1.75)
    module = Positions("sinpos", dim=8, frequency_scale=1.875)
    torch.vmap(lambda p: module(torch.zeros(2, 5, 8), p)[0])(positions)
    assert makes_frequencies(1.875)


def test_settings_that_change_at_every_step_do_not_fill_memory():
    constant = runpy.run_path(constants.__file__)["constant"]  # with a memory of its own
    like = torch.zeros(1)
    found = [constant(ramp, step, like=like) for step in range(6000)]
    kept = [one is constant(ramp, step, like=like) for step, one in enumerate(found)]
    assert kept[0]
    assert not kept[-1]
    assert found[-1].tolist() == list(range(5999))


# ALiBi's bias


@pytest.mark.parametrize("tokens", [1, 8, 13, 197])
@pytest.mark.parametrize("samples", [1, 2])
def test_rows_of_a_bias_lie_where_cudas_attention_takes_them_without_a_copy(tokens, samples):
    """All steps but the last are multiples of 8, the last is 1: preprocess_mask in PyTorch's
    aten/src/ATen/native/transformers/attention.cpp."""
    positions = torch.arange(float(tokens)) + torch.rand(samples, 1)
    module = Positions("alibi", dim=8, heads=4, layers=1)
    _, given = module(None, positions)
    *steps, last = given.bias.stride()
    assert last == 1
    assert not any(step % 8 for step in steps)


# Rotations


def table(batch: int = BATCH, axes: int = 2) -> Tensor:
    where = torch.randn(batch, TOKENS, axes)
    return rotary(axes).prepare(where, where, None, torch.float32).queries[:, None]


def rotary(axes: int = 2) -> Rotary:
    return Rotary(Sizes(dim=HEADS * DIM, heads=HEADS, axes=axes))


def pair(dtype, layout: str = "separate") -> tuple[Tensor, Tensor]:
    """Queries and keys as a host hands them over, (B, heads, N, d): of one projection, or two."""
    if layout in ("transposed", "of a sum"):  # channels lie apart, as in the gradient of such keys
        both = torch.randn(2, BATCH, HEADS, DIM, TOKENS, dtype=dtype)
        both = both if layout == "transposed" else both[..., :1, :].expand(both.shape)
        return tuple(x.mT for x in both.requires_grad_().unbind())
    if layout == "one":
        projected = torch.randn(BATCH, TOKENS, 3, HEADS, DIM, dtype=dtype, requires_grad=True)
        query, key, _ = projected.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key
    shape = (TOKENS, BATCH, HEADS, DIM) if layout == "fairseq" else (BATCH, TOKENS, HEADS, DIM)
    order = (1, 2, 0, 3) if layout == "fairseq" else (0, 2, 1, 3)
    query, key = torch.randn(2, *shape, dtype=dtype).unbind()
    return tuple(x.clone().requires_grad_().permute(order) for x in (query, key))


def results(rotated: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """With gradients, and those of a penalty on them."""
    torch.manual_seed(1)
    grads = [torch.randn(x.shape).to(x.dtype) for x in rotated]
    first = torch.autograd.grad(rotated, inputs, grads, retain_graph=True)
    score = sum(x.float().square().sum() for x in rotated)
    again = torch.autograd.grad(score, inputs, create_graph=True)
    second = torch.autograd.grad(sum(x.float().square().sum() for x in again), inputs)
    return [*rotated, *first, *second]


@pytest.mark.parametrize("layout", ["one", "separate", "fairseq", "transposed", "of a sum"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("batch", "axes"), [(BATCH, 1), (1, 2)])
def test_rotations_give_bits_and_gradients_of_plain_operations(
    dtype, layout, batch, axes, monkeypatch
):
    turns, both, saved = table(batch, axes), pair(dtype, layout), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        rotate(turns, *both)  # which saves nothing but the table
    places = {x.untyped_storage().data_ptr() for x in saved}
    assert places == {turns.untyped_storage().data_ptr()}
    found = results(rotate(turns, *both), both)
    if layout in ("one", "separate", "fairseq"):
        # attention's result lies as they do, and hosts put its heads together without a copy
        for given, made in zip(both, found, strict=False):
            by_stride = [sorted(range(4), key=x.stride, reverse=True) for x in (given, made)]
            assert by_stride[0] == by_stride[1]
    monkeypatch.setattr(fused.guard, "ON", False)
    plain = results(rotate(turns, *both), both)
    assert [x.dtype for x in found] == [dtype] * 6
    for one, other in zip(found[:4], plain[:4], strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(found[4:], plain[4:])


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("batch", [BATCH, 1])
def test_gradients_of_first_and_second_order_are_finite_differences(batch, back, monkeypatch):
    monkeypatch.setattr(fused, "pays", lambda x: True)  # on a CPU it does in half precision alone
    turns = table(batch).double()
    x = torch.randn(BATCH, 1, TOKENS, DIM).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rotate(turns, x, back=back), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: rotate(turns, x, back=back), x, fast_mode=True)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("pos", "axes"), [("rope", 2), ("relpos", 1), ("cape", 1)])
def test_checkpointing_gives_the_same_gradients(pos, axes, reentrant):
    layer = Layer(pos, axes).bfloat16().eval()
    content = torch.randn(2, 6, 12, dtype=torch.bfloat16, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(content, places(axes, 6, 4)).sum(), content)
    checkpoint(layer, content, places(axes, 6, 4), use_reentrant=reentrant).sum().backward()
    assert torch.equal(content.grad, expected)
