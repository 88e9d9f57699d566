"""The fused addition: accuracy against float64, one pass, and what PyTorch asks of an operator."""

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from cape_plugins import PositionalEmbedding1d, PositionalEmbedding2d, patch_grid, sinusoid_1d
from cape_plugins import fused as fused_module
from cape_plugins.fused import add_sinusoid, cpu
from cape_plugins.sinusoid import embed_line, embed_plane

OP = torch.ops.cape_plugins.add_sinusoid.default
HALF_ULP = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch) -> str:
    """Both CPU paths: the compiled module, and what serves without a C compiler."""
    if request.param == "torch":
        monkeypatch.setattr(cpu, "compiled", lambda: None)
    elif cpu.compiled() is None:
        pytest.skip("no C compiler at installation")
    cpu._embedding.cache_clear()
    return request.param


def wide(content: torch.Tensor, positions: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """The sum in float64, from the same positions."""
    positions = positions.double()
    if positions.shape[-1] == 2:
        return content.double() + embed_plane(positions, content.shape[2], scale)
    return content.double() + embed_line(positions[..., 0], content.shape[2], 10_000.0, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("largest", "scale"), [(1e5, 1.0), (3600.0, 30.0)], ids=["1e5 tokens", "3600 s"]
)
@pytest.mark.parametrize("shared", [False, True])
def test_far_positions_are_as_accurate_as_near_ones(path, dtype, largest, scale, shared):
    positions = torch.rand(1 if shared else 3, 40, 1) * largest
    content = torch.zeros(3, 40, 512, dtype=dtype)
    out = add_sinusoid(content, positions, frequency_scale=scale)
    assert out.dtype == dtype
    error = (out.double() - wide(content, positions, scale)).abs().max()
    assert error <= 2e-6 + HALF_ULP[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_a_plane_is_as_accurate(path, dtype, scale):
    positions = torch.rand(3, 40, 2) * 6 - 3
    content = torch.zeros(3, 40, 768, dtype=dtype)
    out = add_sinusoid(content, positions, frequency_scale=scale)
    error = (out.double() - wide(content, positions, scale)).abs().max()
    assert error <= 2e-6 + HALF_ULP[dtype]


def test_half_precision_content_is_rounded_once(path):
    content = torch.randn(2, 30, 64)
    positions = torch.rand(2, 30, 1) * 100
    for dtype in (torch.bfloat16, torch.float16):
        given = content.to(dtype)
        exact = wide(given, positions)
        error = (add_sinusoid(given, positions).double() - exact).abs()
        assert (error <= HALF_ULP[dtype] * exact.abs().clamp(min=1e-3) + 2e-6).all()


def test_float64_positions_keep_their_precision(path):
    positions = torch.rand(1, 50, 1, dtype=torch.float64) * 1e7  # float32 is off by 0.5 here
    out = add_sinusoid(torch.zeros(1, 50, 32), positions)
    torch.testing.assert_close(
        out.double(), wide(torch.zeros(1, 50, 32), positions), atol=2e-6, rtol=0
    )


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 5),
    st.integers(1, 300),
    st.integers(1, 40),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_every_shape_equals_the_plain_path(batch, length, pairs, axes, shared):
    content = torch.randn(batch, length, 2 * pairs)
    positions = torch.randn(1 if shared else batch, length, axes)
    positions[:, length // 2 :: 3] = math.nan
    plain = fused_module._plain(content, positions, 10_000.0, 1.0)
    fused = cpu.add_sinusoid(content, positions, 10_000.0, 1.0)
    # the plain path rounds its phases, up to 10 π · 3 on a plane, to float32
    torch.testing.assert_close(fused, plain, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "content",
    [
        torch.randn(6, 4, 8).transpose(0, 1),  # time first, as in fairseq
        torch.randn(4, 6, 16)[..., ::2],
        torch.randn(4, 12, 8)[:, ::2],
        torch.randn(8).expand(4, 6, 8),
        torch.zeros(()).expand(4, 6, 8),
    ],
    ids=["time first", "every other channel", "every other token", "one row", "one number"],
)
def test_content_may_be_laid_out_in_any_way(path, content):
    positions = torch.rand(4, 6, 1) * 10
    out = add_sinusoid(content, positions)
    torch.testing.assert_close(out, wide(content, positions).float(), atol=2e-6, rtol=0)
    assert out.is_contiguous()


def test_many_threads_give_the_same_as_one(path):
    content, positions = torch.randn(8, 500, 256), torch.rand(8, 500, 1) * 100
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = add_sinusoid(content, positions)
        torch.set_num_threads(5)
        assert torch.equal(add_sinusoid(content, positions), alone)
    finally:
        torch.set_num_threads(threads)


def test_padding_leaves_the_content_as_it_is(path):
    content, positions = torch.randn(2, 5, 8), torch.rand(2, 5)
    positions[1, 3:] = math.nan
    out = add_sinusoid(content, positions)
    assert torch.equal(out[1, 3:], content[1, 3:])
    assert not torch.equal(out[1, :3], content[1, :3])


def test_nothing_is_an_answer_to_nothing():
    assert add_sinusoid(torch.zeros(0, 5, 8), torch.zeros(0, 5)).shape == (0, 5, 8)
    assert add_sinusoid(torch.zeros(2, 0, 8), torch.zeros(2, 0)).shape == (2, 0, 8)


def test_the_gradient_is_passed_on_and_nothing_is_saved():
    content = torch.randn(2, 5, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = add_sinusoid(content, torch.rand(2, 5))
    gradient = torch.randn(2, 5, 8)
    out.backward(gradient)
    assert torch.equal(content.grad, gradient)
    assert not kept


def test_positions_that_want_a_gradient_get_it():
    positions = torch.rand(1, 5, requires_grad=True)
    add_sinusoid(torch.randn(1, 5, 8), positions).sum().backward()
    assert positions.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("positions", [torch.rand(2, 5, 1), torch.rand(1, 5, 2)])
def test_opcheck_passes(dtype, positions):
    content = torch.randn(2, 5, 8, dtype=dtype, requires_grad=True)
    torch.library.opcheck(OP, (content, positions, 10_000.0, 30.0))


def test_two_graphs_serve_all_image_sizes():
    module, counter = PositionalEmbedding2d(8), CompileCounter()

    def patches_of(image: torch.Tensor) -> torch.Tensor:  # (B, H, W, C)
        grid = (image.shape[1], image.shape[2])
        return module(image.flatten(1, 2), grid)

    compiled = torch.compile(patches_of, fullgraph=True, backend=counter)
    for side in range(4, 12):
        assert compiled(torch.zeros(2, side, side + 1, 8)).isfinite().all()
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_into_one_graph(dynamic):
    content, positions = torch.randn(2, 5, 8), torch.rand(2, 5, 1)
    compiled = torch.compile(add_sinusoid, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    torch.testing.assert_close(compiled(content, positions), add_sinusoid(content, positions))


def test_an_exported_model_holds_the_operator_and_any_size_fits():
    model = PositionalEmbedding1d(8, "cape").eval()
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2)
    exported = torch.export.export(
        model,
        (torch.randn(2, 5, 8), torch.rand(2, 5)),
        dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
    )
    assert OP in [node.target for node in exported.graph.nodes]
    content, positions = torch.randn(3, 9, 8), torch.rand(3, 9)
    torch.testing.assert_close(exported.module()(content, positions), model(content, positions))


def test_autocast_changes_nothing():
    content, positions = torch.randn(2, 5, 8), torch.rand(2, 5) * 1e4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = add_sinusoid(content, positions)
    assert torch.equal(out, add_sinusoid(content, positions))


def test_vmap_and_functional_gradients_take_the_plain_path():
    content, positions = torch.randn(4, 2, 5, 8), torch.rand(4, 2, 5)
    mapped = torch.vmap(add_sinusoid)(content, positions)
    one_by_one = torch.stack([add_sinusoid(*pair) for pair in zip(content, positions, strict=True)])
    torch.testing.assert_close(mapped, one_by_one)
    square = torch.func.grad(lambda c: add_sinusoid(c, positions[0]).square().sum())
    torch.testing.assert_close(square(content[0]), 2 * add_sinusoid(content[0], positions[0]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("variant", ["sinpos", "cape"])
def test_torchscript_compiles_the_modules_onto_the_plain_path(variant, training):
    one = PositionalEmbedding1d(
        8, variant, max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4
    ).train(training)
    two = PositionalEmbedding2d(8, variant).train(training)
    content, positions = torch.randn(2, 6, 8), torch.rand(2, 6)
    for module, rest in ((one, (positions,)), (two, ((2, 3),))):
        scripted = torch.jit.script(module)
        torch.manual_seed(0)
        expected = module(content, *rest)
        torch.manual_seed(0)
        torch.testing.assert_close(scripted(content, *rest), expected, atol=1e-5, rtol=0)


def test_tracing_takes_the_plain_path():
    model = PositionalEmbedding1d(8).eval()
    traced = torch.jit.trace(model, (torch.randn(2, 6, 8), torch.rand(2, 6)))
    assert "cape_plugins::" not in str(traced.graph)


def test_an_environment_variable_switches_it_off():
    code = (
        "import torch; from cape_plugins.fused import add_sinusoid, takes_op\n"
        "content, positions = torch.zeros(1, 3, 4), torch.rand(1, 3, 1)\n"
        "print(takes_op(content, positions), add_sinusoid(content, positions).shape)"
    )
    for value, expected in (("0", "False"), ("1", "True")):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "CAPE_PLUGINS_FUSED": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout == f"{expected} torch.Size([1, 3, 4])\n"


@pytest.fixture
def fresh_compiled():
    cpu.compiled.cache_clear()
    yield
    cpu.compiled.cache_clear()


def test_without_the_compiled_module_torch_serves_and_a_log_line_says_so(
    monkeypatch, caplog, fresh_compiled
):
    monkeypatch.setitem(sys.modules, "cape_plugins.fused._rows", None)  # import finds nothing
    with caplog.at_level("INFO"):
        out = add_sinusoid(torch.zeros(1, 3, 4), torch.rand(1, 3))
    assert out.isfinite().all()
    assert "install a C compiler, then cape-plugins again" in caplog.text


def test_a_compiled_module_that_adds_wrongly_is_not_used(monkeypatch, caplog, fresh_compiled):
    class Wrong:
        __file__ = "_rows.abi3.so"

        @staticmethod
        def add_rows(*_):
            pass

    monkeypatch.setitem(sys.modules, "cape_plugins.fused._rows", Wrong)
    assert cpu.compiled() is None
    assert "_rows.abi3.so adds wrongly" in caplog.text


def test_shared_positions_are_embedded_once_for_many_forwards(path, monkeypatch):
    content, positions = torch.randn(4, 6, 8), torch.rand(1, 6, 2)
    embedded = []
    add = cpu._add
    monkeypatch.setattr(cpu, "_add", lambda *a: embedded.append(a) or add(*a))
    first = add_sinusoid(content, positions)
    assert torch.equal(add_sinusoid(content, positions.clone()), first)
    assert len(embedded) == 1
    torch.testing.assert_close(first, wide(content, positions).float(), atol=2e-6, rtol=0)


def test_what_is_kept_for_the_next_forward_is_bounded():
    content = torch.randn(2, 6, 8)
    for seed in range(20):
        add_sinusoid(content, torch.full((1, 6), float(seed)))
    assert cpu._embedding.cache_info().currsize <= 4
    long = torch.arange(cpu._KEPT // 8 + 1)[None].float()
    before = cpu._embedding.cache_info()
    add_sinusoid(torch.zeros(()).expand(2, long.shape[1], 8), long)
    assert cpu._embedding.cache_info() == before


def test_an_embedding_kept_from_inference_mode_serves_training():
    content, positions = torch.randn(2, 6, 8), torch.rand(1, 6, 2)
    with torch.inference_mode():
        expected = add_sinusoid(content, positions)
    content.requires_grad_()
    out = add_sinusoid(content, positions)
    out.sum().backward()
    assert torch.equal(out.detach(), expected)


def test_the_grid_kept_for_the_next_forward_is_never_changed():
    module, content = PositionalEmbedding2d(8), torch.zeros(2, 6, 8)
    with torch.inference_mode():
        before = module.eval()(content, (2, 3))
    module.train()(content.requires_grad_(), (2, 3)).sum().backward()
    assert torch.equal(module.eval()(content, (2, 3)), before)
    half = PositionalEmbedding2d(8, extent=0.5).eval()
    assert not torch.equal(half(content, (2, 3)), before)


def test_padding_that_wants_gradients_gets_zeros_not_nan():
    positions = torch.tensor([[0.0, 1.0, math.nan]], requires_grad=True)
    add_sinusoid(torch.randn(1, 3, 8), positions).square().sum().backward()
    assert positions.grad.isfinite().all()
    assert positions.grad[0, 2] == 0
    assert (positions.grad[0, :2] != 0).all()


def test_forward_mode_derivatives_are_those_of_the_sum():
    content, positions = torch.randn(2, 5, 8), torch.rand(2, 5, 1)
    tangent, direction = torch.randn(2, 5, 8), torch.rand(2, 5, 1)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual
        out = add_sinusoid(dual(content, tangent), positions)
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(out).tangent, tangent)
        out = add_sinusoid(dual(content, tangent), dual(positions, direction))
        found = torch.autograd.forward_ad.unpack_dual(out).tangent
    step = 1e-6
    far, near = (wide(content, positions.double() + s * direction) for s in (step, -step))
    torch.testing.assert_close(
        found.double(), tangent + (far - near) / (2 * step), atol=1e-4, rtol=1e-4
    )


def test_float64_content_has_phases_in_float64():
    positions = torch.tensor([[100_000.0, 99_999.0]])  # exact in float32
    out = add_sinusoid(torch.zeros(1, 2, 512, dtype=torch.float64), positions)
    exact = sinusoid_1d(positions.double(), 512)
    torch.testing.assert_close(out, exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("shape", "positions", "message"),
    [
        ((2, 5), (2, 5), r"content must be \(B, N, D\)"),
        ((2, 5, 7), (2, 5), "dim must be even"),
        ((2, 5, 8), (3, 5), r"needs positions \(2, 5\)"),
        ((2, 5, 8), (2, 4), r"needs positions \(2, 5\)"),
        ((2, 5, 8), (2, 5, 3), r"needs positions \(2, 5\)"),
        ((2, 2, 8), (2, 2), "could be"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shape, positions, message):
    with pytest.raises(ValueError, match=message):
        add_sinusoid(torch.zeros(shape), torch.zeros(positions))


def test_infinite_positions_are_refused():
    with pytest.raises(ValueError, match="must be finite"):
        add_sinusoid(torch.zeros(1, 2, 4), torch.tensor([[0.0, math.inf]]))


def test_a_grid_of_patches_needs_no_batch():
    content = torch.randn(3, 6, 8)
    out = add_sinusoid(content, patch_grid(2, 3))
    assert torch.equal(out, add_sinusoid(content, patch_grid(2, 3)[None].expand(3, -1, -1)))


def test_the_listing_of_frequencies_is_one(path):
    positions = torch.rand(1, 20)
    out = add_sinusoid(torch.zeros(1, 20, 16), positions, base=100.0, frequency_scale=3.0)
    expected = sinusoid_1d(positions, 16, base=100.0, frequency_scale=3.0)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=0)
