"""Eager mode's rotation against plain operations: bits, gradients, what it saves."""

import pytest
import torch
from cape_plugins.rotation import rotate, rotate_mixed
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cape_plugins import rotation
from cape_plugins.attention import AttentionSettings
from cape_plugins.rotary import MixedRotaryAttention, RotaryAttention

BATCH, HEADS, TOKENS, DIM = 2, 3, 10, 8
HALF = [torch.bfloat16, torch.float16]


def table(batch: int = BATCH, axes: int = 2) -> Tensor:
    positions = torch.randn(batch, TOKENS, *([2] if axes == 2 else []))
    return RotaryAttention.prepare(positions, AttentionSettings(DIM, HEADS, axes=axes))[:, None]


def pair(dtype, layout: str = "separate") -> tuple[Tensor, Tensor]:
    """Queries and keys as a host hands them over, (B, heads, N, d): of one projection, or two."""
    if layout == "one":
        projected = torch.randn(BATCH, TOKENS, 3, HEADS, DIM, dtype=dtype, requires_grad=True)
        query, key, _ = projected.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key
    shape = (TOKENS, BATCH, HEADS, DIM) if layout == "fairseq" else (BATCH, TOKENS, HEADS, DIM)
    order = (1, 2, 0, 3) if layout == "fairseq" else (0, 2, 1, 3)
    query, key = torch.randn(2, *shape, dtype=dtype).unbind()
    return tuple(x.clone().requires_grad_().permute(order) for x in (query, key))


def plainly(monkeypatch) -> None:
    monkeypatch.setattr(rotation, "is_plain", lambda *_: False)


def results(rotated: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    torch.manual_seed(1)
    grads = [torch.randn(x.shape).to(x.dtype) for x in rotated]
    return [*rotated, *torch.autograd.grad(rotated, inputs, grads)]


@pytest.mark.parametrize("layout", ["one", "separate", "fairseq"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("batch", "axes"), [(BATCH, 1), (1, 2)])
def test_it_gives_the_bits_and_gradients_of_plain_operations(
    dtype, layout, batch, axes, monkeypatch
):
    turns, both = table(batch, axes), pair(dtype, layout)
    found = results(rotate(turns, *both), both)
    plainly(monkeypatch)
    for one, other in zip(found, results(rotate(turns, *both), both), strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("lies", [lambda x: x.mT, lambda x: x[:, :, :1].expand(x.shape).mT])
def test_channels_may_lie_apart_in_memory(lies, monkeypatch):
    """As in the gradient of keys that were transposed for a product, or in that of a sum."""
    turns = table()
    both = [lies(torch.randn(BATCH, HEADS, DIM, TOKENS, dtype=torch.bfloat16)) for _ in range(2)]
    found = rotate(turns, *both)
    plainly(monkeypatch)
    for one, other in zip(found, rotate(turns, *both), strict=True):
        assert torch.equal(one, other)


def test_fewer_queries_than_keys_hand_back_gradients_with_weights_too():
    settings = AttentionSettings(DIM, HEADS, axes=2)
    positions = torch.randn(BATCH, TOKENS, 2)
    for layer in (RotaryAttention(settings), MixedRotaryAttention(settings)):
        query, key = pair(torch.bfloat16)
        prepared = layer.prepare(positions, settings)
        out, _ = layer(query[:, :, -2:], key, key, prepared, need_weights=True)
        for grad in torch.autograd.grad(out.float().square().sum(), (query, key)):
            assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("batch", [BATCH, 1])
def test_mixed_gives_the_bits_of_plain_operations_and_their_gradient_of_frequencies(
    dtype, batch, monkeypatch
):
    positions = torch.randn(batch, TOKENS, 2)
    frequencies = torch.randn(2, HEADS, DIM // 2, requires_grad=True)
    both = pair(dtype, "one")
    inputs = (*both, frequencies)
    found = results(rotate_mixed(positions, frequencies, *both), inputs)
    plainly(monkeypatch)
    expected = results(rotate_mixed(positions, frequencies, *both), inputs)
    for one, other in zip(found[:4], expected[:4], strict=True):
        assert torch.equal(one, other)
    # taken of the rotated queries and keys, which are rounded
    within = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(found[4], expected[4], rtol=within, atol=within)


@pytest.mark.parametrize("layout", ["one", "separate", "fairseq"])
def test_the_result_lies_in_memory_as_the_queries_do(layout):
    """So attention's result does, and hosts put its heads together without a copy."""
    both = pair(torch.bfloat16, layout)
    for given, found in zip(both, rotate(table(), *both), strict=True):
        by_stride = [sorted(range(4), key=x.stride, reverse=True) for x in (given, found)]
        assert by_stride[0] == by_stride[1]


class Saved:
    """The storages that autograd keeps for backward under it, and their bytes."""

    def __enter__(self):
        self.found: dict[int, Tensor] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda x: x)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    def keep(self, x: Tensor) -> Tensor:
        self.found[x.untyped_storage().data_ptr()] = x
        return x


@pytest.mark.parametrize("dtype", HALF)
def test_nothing_is_saved_but_the_table(dtype):
    turns, both = table(), pair(dtype)
    with Saved() as saved:
        rotate(turns, *both)
    assert set(saved.found) == {turns.untyped_storage().data_ptr()}


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_mixed_saves_the_rotated_queries_and_keys_and_no_table(dtype):
    positions, both = torch.randn(BATCH, TOKENS, 2), pair(dtype)
    frequencies = torch.randn(2, HEADS, DIM // 2, requires_grad=True)
    with Saved() as saved:
        rotated = rotate_mixed(positions, frequencies, *both)
    own = {x.untyped_storage().data_ptr() for x in (positions, frequencies, *rotated)}
    assert set(saved.found) <= own


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("batch", [BATCH, 1])
def test_gradients_of_first_and_second_order_are_finite_differences(batch, back):
    positions = torch.randn(batch, TOKENS, 2).double()
    frequencies = torch.randn(2, 1, 2).double().requires_grad_()
    both = torch.randn(2, BATCH, 1, TOKENS, 4).double().requires_grad_().unbind()
    turns = table(batch).double()

    def mixed(frequencies, *both):
        return rotate_mixed(positions, frequencies, *both, back=back)

    assert torch.autograd.gradcheck(mixed, (frequencies, *both))
    assert torch.autograd.gradgradcheck(mixed, (frequencies, *both))
    x = torch.randn(BATCH, 1, TOKENS, DIM).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rotate(turns, x, back=back), x)
    assert torch.autograd.gradgradcheck(lambda x: rotate(turns, x, back=back), x)


@pytest.mark.parametrize("dtype", HALF)
def test_second_order_in_half_precision_is_that_of_plain_operations(dtype, monkeypatch):
    """As a penalty on gradients takes it."""
    turns, (query, key) = table(), pair(dtype)

    def penalty() -> list[Tensor]:
        score = sum(x.float().square().sum() for x in rotate(turns, query, key))
        grads = torch.autograd.grad(score, (query, key), create_graph=True)
        return torch.autograd.grad(sum(g.float().square().sum() for g in grads), (query, key))

    found = penalty()
    plainly(monkeypatch)
    for one, other in zip(found, penalty(), strict=True):
        torch.testing.assert_close(one, other)


def modules() -> list:
    sizes = AttentionSettings(DIM, HEADS, axes=2)
    return [kind(sizes) for kind in (RotaryAttention, MixedRotaryAttention)]


def attend(module, positions: Tensor, *tensors: Tensor) -> Tensor:
    prepared = module.prepare(positions, module.settings)
    return module(*tensors, prepared)[0]


@pytest.mark.parametrize("kind", [0, 1], ids=["rope", "mixed"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(kind, reentrant):
    module, positions = modules()[kind], torch.randn(BATCH, TOKENS, 2)
    tensors = [x.detach().requires_grad_() for x in (*pair(torch.bfloat16), pair(HALF[0])[0])]
    without = torch.autograd.grad(attend(module, positions, *tensors).sum(), tensors)
    out = checkpoint(attend, module, positions, *tensors, use_reentrant=reentrant)
    for x in tensors:
        x.grad = None
    out.sum().backward()
    for x, expected in zip(tensors, without, strict=True):
        assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("kind", [0, 1], ids=["rope", "mixed"])
def test_learned_positions_get_a_gradient_in_half_precision_too(kind):
    module, positions = modules()[kind], torch.randn(BATCH, TOKENS, 2, requires_grad=True)
    tensors = [*pair(torch.bfloat16), pair(torch.bfloat16)[0]]
    (grad,) = torch.autograd.grad(attend(module, positions, *tensors).sum(), positions)
    assert grad.isfinite().all()
    assert (grad != 0).all()


@pytest.mark.parametrize("kind", [0, 1], ids=["rope", "mixed"])
def test_torch_func_and_batched_gradients_work_in_half_precision(kind):
    module, positions = modules()[kind], torch.randn(BATCH, TOKENS, 2)
    query, key = pair(torch.bfloat16)
    expected = attend(module, positions, query, key, query)
    one_by_one = torch.vmap(lambda p, *x: attend(module, p[None], *(t[None] for t in x))[0])
    found = one_by_one(positions, query, key, query)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)

    rotated = module.embed(query, module.prepare(positions, module.settings))
    grads = torch.randn(4, *rotated.shape).bfloat16()
    batched = torch.autograd.grad(rotated, query, grads, retain_graph=True, is_grads_batched=True)
    for i, grad in enumerate(grads):
        (alone,) = torch.autograd.grad(rotated, query, grad, retain_graph=True)
        torch.testing.assert_close(batched[0][i], alone)

    _, tangent = torch.func.jvp(
        lambda x: module.embed(x, module.prepare(positions, module.settings)),
        (query.detach(),),
        (torch.ones_like(query),),
    )
    turned = module.embed(torch.ones_like(query), module.prepare(positions, module.settings))
    torch.testing.assert_close(tangent, turned, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", [0, 1], ids=["rope", "mixed"])
def test_a_compiled_training_step_is_one_graph_and_the_same(kind):
    module, positions = modules()[kind], torch.randn(BATCH, TOKENS, 2)
    tensors = [*pair(torch.bfloat16), pair(torch.bfloat16)[0]]
    expected = torch.autograd.grad(attend(module, positions, *tensors).sum(), tensors)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(module, positions, *tensors).sum(), tensors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)
