"""The Triton kernel: on a GPU where there is one, else in Triton's interpreter on the CPU.

Triton decides at its import whether it interprets, so without a GPU the tests of this file run in
a process of their own, started by the first one.
"""

import inspect
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from cape_plugins import PositionalEmbedding1d
from cape_plugins.fused import add_sinusoid, cpu

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
# on a GPU the kernel is autotuned; interpreted, large blocks are fast and small ones test edges
LARGE = None if ON_GPU else dict(TOKENS=64, PHASES=32, SAMPLES=64)
SMALL = None if ON_GPU else dict(TOKENS=4, PHASES=8, SAMPLES=2)

runs = pytest.mark.skipif(
    not (ON_GPU or INTERPRETED), reason="run by test_the_kernel_passes_in_tritons_interpreter"
)
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


@pytest.mark.skipif(ON_GPU or INTERPRETED, reason="the tests below run in this process")
def test_the_kernel_passes_in_tritons_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "passed" in ran.stdout


@pytest.fixture(scope="module", autouse=True)
def fused_multiply_add():
    """The interpreter rounds fma twice; a GPU rounds once, and the kernel builds on that."""
    if not INTERPRETED:
        yield
        return
    import numpy as np
    from triton.runtime import interpreter

    def fma(self, x, y, z):
        wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(wide.astype(x.data.dtype), z.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_fma", fma)
        yield


def launch(content: torch.Tensor, positions: torch.Tensor, *, scale=1.0, blocks=LARGE):
    from cape_plugins.fused import cuda

    out = cuda.add_sinusoid(content.to(DEVICE), positions.to(DEVICE), 10_000.0, scale, blocks)
    return out.cpu()


@runs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("position_dtype", [torch.float32, torch.float64])
def test_it_equals_the_cpu(dtype, axes, shared, position_dtype):
    content = torch.randn(3, 7, 18).to(dtype)
    positions = torch.randn(1 if shared else 3, 7, axes, dtype=position_dtype) * 3
    positions[:, 5:] = math.nan
    expected = cpu.add_sinusoid(content, positions, 10_000.0, 0.3)
    tolerance = dict(atol=2e-6, rtol=0 if dtype == torch.float32 else 1e-3)
    out = launch(content, positions, scale=0.3, blocks=SMALL)
    torch.testing.assert_close(out, expected, **tolerance)


@runs
@pytest.mark.parametrize(
    ("largest", "scale"), [(1e5, 1.0), (3600.0, 30.0)], ids=["1e5 tokens", "3600 s"]
)
def test_far_positions_are_as_accurate_as_near_ones(largest, scale):
    positions = torch.rand(2, 50, 1) * largest
    content = torch.zeros(2, 50, 64)
    out = launch(content, positions, scale=scale)
    k = torch.arange(32, dtype=torch.float64)
    phase = positions.double() * scale * 10_000.0 ** (-2 * k / 64)
    exact = torch.cat([phase.cos(), phase.sin()], dim=-1)
    assert (out.double() - exact).abs().max() <= 2e-6


@runs
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1)], ids=["time first", "channels first"])
def test_content_may_be_laid_out_in_any_way(order):
    sizes = [(3, 7, 8)[axis] for axis in order]
    content = torch.randn(sizes).permute(order)  # (3, 7, 8)
    positions = torch.rand(3, 7, 1)
    expected = cpu.add_sinusoid(content, positions, 10_000.0, 1.0)
    torch.testing.assert_close(launch(content, positions), expected, atol=2e-6, rtol=0)


@runs
@pytest.mark.parametrize("shared", [False, True])
def test_many_blocks_along_every_axis_leave_nothing_out(shared):
    content = torch.randn(5, 11, 20)
    positions = torch.randn(1 if shared else 5, 11, 2)
    expected = cpu.add_sinusoid(content, positions, 10_000.0, 1.0)
    for blocks in (SMALL, None if ON_GPU else dict(TOKENS=1, PHASES=2, SAMPLES=1)):
        out = launch(content, positions, blocks=blocks)
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("batch", "length"), [(1, 100_000), (200_000, 1), (200_000, 3)])
def test_the_grid_is_flat_however_long_the_sequence_and_large_the_batch(batch, length):
    from cape_plugins.fused import cuda

    for config in cuda._CONFIGS:
        (programs,) = cuda.grid(batch, length, 384, config.kwargs)
        sizes = (batch, length, 384)
        blocks = [config.kwargs[name] for name in ("SAMPLES", "TOKENS", "PHASES")]
        assert programs == math.prod(-(-n // b) for n, b in zip(sizes, blocks, strict=True))
        assert programs < 2**31


@runs
def test_tokens_may_lie_2_to_the_30_elements_apart():
    memory = torch.empty(3 * 2**30 + 8, dtype=torch.float16)  # never touched but for four rows
    content = memory.as_strided((1, 4, 8), (0, 2**30, 1))
    rows, positions = torch.randn(1, 4, 8).half(), torch.rand(1, 4, 1)
    content.copy_(rows)
    expected = cpu.add_sinusoid(rows, positions, 10_000.0, 1.0)
    assert torch.equal(launch(content, positions, blocks=SMALL), expected)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_compiles_for_hopper_without_one(axes, dtype):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from cape_plugins.fused import cuda

    kernel = cuda._kernel.fn
    types = {**dict.fromkeys(("out", "content"), f"*{dtype}"), "positions": "*fp32"}
    signature = {
        name: types.get(name, "constexpr" if name.isupper() else "i32") for name in kernel.arg_names
    }
    constants = dict(
        AXES=axes, WIDE=False, SHARED=True, CHANNELS_LAST=True,
        LOG_BASE=9.25, LOG_BASE_LOW=-0.04, TURNS=0.15625, TURNS_LOW=0.003,
        TOKENS=4, PHASES=128, SAMPLES=8,
    )  # fmt: skip
    if "constexprs" in inspect.signature(ASTSource).parameters:
        source = ASTSource(kernel, signature=signature, constexprs=constants)
    else:  # before Triton 3.3
        signature = {name: kind for name, kind in signature.items() if kind != "constexpr"}
        source = ASTSource(kernel, signature=signature, constants=constants)
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=4))
    assert compiled.asm["cubin"]


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_the_operator_serves(dtype):
    content = torch.randn(4, 196, 768, device="cuda", dtype=dtype, requires_grad=True)
    positions = torch.rand(4, 196, 2, device="cuda") * 4 - 2
    out = add_sinusoid(content, positions)
    expected = cpu.add_sinusoid(content.detach().cpu(), positions.cpu(), 10_000.0, 1.0)
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.detach().cpu(), expected, atol=tolerance, rtol=0)
    out.sum().backward()
    assert (content.grad == 1).all()


@needs_gpu
def test_on_a_gpu_a_generator_repeats_a_run_without_waiting_for_the_device():
    module = PositionalEmbedding1d(
        768, max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4
    )
    content = torch.randn(4, 196, 768, device="cuda")
    positions = torch.rand(4, 196, device="cuda")
    module(content, positions)  # compiles and tunes

    def run() -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(7)
        return module(content, positions, generator=generator)

    torch.cuda.set_sync_debug_mode("error")
    try:
        first, second = run(), run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, second)


@needs_gpu
def test_on_a_gpu_infinite_positions_end_the_process():
    code = (
        "import torch; from cape_plugins.fused import add_sinusoid\n"
        "positions = torch.tensor([[0.0, float('inf')]], device='cuda')\n"
        "add_sinusoid(torch.zeros(1, 2, 4, device='cuda'), positions)\n"
        "torch.cuda.synchronize()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "device-side assert" in ran.stderr
