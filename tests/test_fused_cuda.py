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

from cape_plugins.augment import Augmentation
from cape_plugins.fused import add_augmented_sinusoid, add_sinusoid, cpu

ON_GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
# on a GPU the kernel is autotuned; interpreted, large blocks are fast and small ones test edges
LARGE = None if ON_GPU else dict(TOKENS=64, PHASES=32, SAMPLES=64)
SMALL = None if ON_GPU else dict(TOKENS=4, PHASES=8, SAMPLES=2)

_FLOAT_POINTERS = ("positions", "shift_pointer", "lambda_pointer", "max_local_pointer")

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


def launch(content: torch.Tensor, positions: torch.Tensor, *, scale=1.0, blocks=LARGE, **kwargs):
    from cape_plugins.fused import cuda

    kwargs = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    out = cuda._launch(
        content.to(DEVICE), positions.to(DEVICE), 10_000.0, scale, blocks=blocks, **kwargs
    )
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
    expected = cpu.add_sinusoid(content, positions, 10_000.0, 1.0)
    tolerance = dict(atol=2e-6, rtol=0 if dtype == torch.float32 else 1e-3)
    torch.testing.assert_close(launch(content, positions, blocks=SMALL), expected, **tolerance)


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


def moved(seed: int, *, position=0.0, shift=0.0, local=(0.0, 0.0), scale=1.0, axes=1):
    """Augmented positions of 64 samples × 50 tokens, read back from a slow phase."""
    noise = (shift, torch.tensor(local, device=DEVICE), math.log(scale))
    content, positions = torch.zeros(64, 50, 2), torch.full((1, 50, axes), position)
    out = launch(content, positions, scale=0.1, seed=torch.tensor([seed]), noise=noise)
    return torch.atan2(out[..., 1], out[..., 0]) / 0.1


@runs
def test_the_global_shift_is_uniform_and_one_per_sample():
    drawn = moved(1, shift=5.0)
    assert (drawn == drawn[:, :1]).all()
    assert -5 <= drawn.min() < -4
    assert 4 < drawn.max() <= 5
    assert drawn[:, 0].std().item() == pytest.approx(5 / math.sqrt(3), rel=0.15)


@runs
def test_the_local_shift_is_uniform_and_one_per_token():
    drawn = moved(1, local=(0.5, 0.5))
    assert drawn.unique().numel() > 3000
    assert drawn.abs().max() <= 0.501  # read back with a rounding error
    assert drawn.std().item() == pytest.approx(0.5 / math.sqrt(3), rel=0.03)
    assert drawn.mean().abs() < 0.02


@runs
def test_the_global_scale_is_log_uniform_and_one_per_sample():
    drawn = moved(1, position=1.0, scale=2.0)
    torch.testing.assert_close(drawn, drawn[:, :1].expand_as(drawn))
    assert 0.499 <= drawn.min() < 0.6
    assert 1.7 < drawn.max() <= 2.001
    assert drawn[:, 0].log().std().item() == pytest.approx(math.log(2) / math.sqrt(3), rel=0.15)


@runs
def test_a_seed_repeats_its_numbers_and_another_gives_others():
    assert torch.equal(moved(1, local=(0.5, 0.5)), moved(1, local=(0.5, 0.5)))
    pair = torch.stack([moved(1, local=(0.5, 0.5)).flatten(), moved(2, local=(0.5, 0.5)).flatten()])
    assert torch.corrcoef(pair)[0, 1].abs() < 0.1


@runs
@pytest.mark.parametrize("axes", [1, 2])
def test_a_given_draw_is_used(axes):
    augmentation = Augmentation(0.5, 0.0, 1.4, mean_normalize=False)
    draw = augmentation.draw(3, axes)
    content, positions = torch.randn(3, 7, 10), torch.rand(3, 7, axes)
    out = launch(
        content,
        positions,
        seed=torch.tensor([5]),
        shift=draw.shift,
        global_scale=draw.scale,
        noise=(0.5, torch.zeros(2, device=DEVICE), math.log(1.4)),
    )
    expected = cpu.add_sinusoid(content, augmentation.apply(positions, draw), 10_000.0, 1.0)
    torch.testing.assert_close(out, expected, atol=3e-6, rtol=0)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("augment", [False, True])
def test_it_compiles_for_hopper_without_one(axes, dtype, augment):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from cape_plugins.fused import cuda

    kernel = cuda._kernel.fn
    pointers = {
        **dict.fromkeys(("out", "content"), f"*{dtype}"),
        **dict.fromkeys(_FLOAT_POINTERS, "*fp32"),
        "seed_pointer": "*i64",
    }
    floats = dict.fromkeys(("max_shift", "log_max_scale"), "fp32")
    types = {**pointers, **floats}
    signature = {
        name: types.get(name, "constexpr" if name.isupper() else "i32") for name in kernel.arg_names
    }
    constants = dict(
        AXES=axes, WIDE=False, SHARED=True, CHANNELS_LAST=True, AUGMENT=augment, GIVEN=False,
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
    content = torch.randn(4, 196, 768, device="cuda")
    positions = torch.rand(4, 196, 1, device="cuda")
    augmentation = Augmentation(5.0, 0.5, 1.4)
    add_augmented_sinusoid(content, positions, augmentation)  # compiles and tunes

    def run() -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(7)
        return add_augmented_sinusoid(content, positions, augmentation, generator=generator)

    torch.cuda.set_sync_debug_mode("error")
    try:
        first, second = run(), run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, second)
