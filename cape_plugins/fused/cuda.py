"""content + embedding on CUDA: one Triton kernel.

Each program takes a block of tokens × a block of phases and walks over samples: the content's two
halves are read, the cosines and sines of their phases added, the sums written, channels last even
where content has them first (timm's patches). Phases are taken in turns. A frequency is carried in
two floats, and a fused multiply-add takes the whole turns off the exact product, so that hours of
audio keep their accuracy in single precision.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cape_plugins.fused import cpu


@functools.cache
def _split(number: float) -> tuple[float, float]:
    """A number as a float32 and what that leaves: Triton before 3.3 rounds constants to float32."""
    high = torch.tensor(number, dtype=torch.float32).item()
    return high, number - high


_LN_10, _LN_10_LOW = map(tl.constexpr, _split(math.log(10.0)))


@triton.jit
def _turns_per_unit(
    k, half, AXIS: tl.constexpr, AXES: tl.constexpr, LOG_BASE: tl.constexpr,
    LOG_BASE_LOW: tl.constexpr, TURNS: tl.constexpr, TURNS_LOW: tl.constexpr,
):  # fmt: skip
    """Frequency of phase k along an axis as two floats; sinusoid.py's formulas in float64."""
    k = k.to(tl.float64)
    if AXES == 1:
        power = k / half
        series = tl.exp(-(power * LOG_BASE + power * LOG_BASE_LOW))
        wide = series * TURNS + series * TURNS_LOW
    else:
        power = (k + 1) / half
        series = tl.exp(power * _LN_10 + power * _LN_10_LOW)
        radius = series * TURNS + series * TURNS_LOW
        wide = radius * (tl.cos(k) if AXIS == 0 else tl.sin(k))
    high = wide.to(tl.float32)
    return high, (wide - high.to(tl.float64)).to(tl.float32)


@triton.jit
def _cos_sin(turns):
    """Cosine and sine of turns in about ±1/2: quarter turns off, then polynomials on ±π/4."""
    quarters = tl.floor(4.0 * turns + 0.5)
    x = (turns - 0.25 * quarters) * 6.28318530717958648
    y = x * x
    s = x + x * y * (-1.6666654611e-1 + y * (8.3321608736e-3 + y * -1.9515295891e-4))
    c = 1.0 - 0.5 * y
    c += y * y * (4.166664568298827e-2 + y * (-1.388731625493765e-3 + y * 2.443315711809948e-5))
    q = quarters.to(tl.int32)
    odd = (q & 1) != 0
    sine = tl.where(odd, c, s)
    cosine = tl.where(odd, s, c)
    return (
        tl.where(((q + 1) & 2) != 0, -cosine, cosine),
        tl.where((q & 2) != 0, -sine, sine),
    )


@triton.jit
def _reduced(high, low, position_high, position_low):
    """position · frequency without its whole turns, (tokens, phases)."""
    whole = tl.floor(position_high * high + 0.5)
    # fused: the product is exact before the whole turns leave it, and what remains is small
    return tl.fma(position_high, high, -whole) + (position_high * low + position_low * high)


@triton.jit
def _position(pointer, mask, WIDE: tl.constexpr):
    """A position as two floats; NaN where there is none."""
    value = tl.load(pointer, mask=mask, other=float("nan"))
    high = value.to(tl.float32)
    if WIDE:
        return high, (value - high.to(tl.float64)).to(tl.float32)
    return high, high * 0.0


_CONFIGS = [
    triton.Config(
        {"TOKENS": tokens, "PHASES": phases, "SAMPLES": samples},
        num_warps=warps,
    )
    for tokens, phases, samples, warps in (
        (1, 512, 8, 4),
        (2, 256, 8, 4),
        (4, 128, 8, 4),
        (4, 256, 8, 8),
        (8, 128, 4, 4),
        (8, 128, 16, 4),
        (16, 128, 2, 8),
        (16, 64, 8, 4),
        (32, 32, 4, 4),
        (64, 32, 2, 8),
    )
]


# not by length, batch or strides: they change from batch to batch
_KEY = ["half", "dtype_bytes", "CHANNELS_LAST", "AXES", "WIDE", "SHARED"]


# LOG_BASE and TURNS are constants because an argument would be rounded to float32
@triton.autotune(configs=_CONFIGS, key=_KEY)
@triton.jit(do_not_specialize=["batch", "length"])
def _kernel(
    out, content, positions, batch, length, half, dtype_bytes,
    content_stride_b, content_stride_n, content_stride_k,
    position_stride_b, position_stride_n,
    AXES: tl.constexpr, WIDE: tl.constexpr, SHARED: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    LOG_BASE: tl.constexpr, LOG_BASE_LOW: tl.constexpr, TURNS: tl.constexpr,
    TURNS_LOW: tl.constexpr,
    TOKENS: tl.constexpr, PHASES: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    # one flat grid, phases running fastest: the y and z axes of a grid end at 65 535
    phase_blocks = tl.cdiv(half, PHASES)
    token_blocks = tl.cdiv(length, TOKENS)
    block = tl.program_id(0)
    k = (block % phase_blocks) * PHASES + tl.arange(0, PHASES)  # (PHASES,)
    block = block // phase_blocks
    # offsets in int64: a sequence may be long, and its tokens far apart
    token = ((block % token_blocks) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)  # (TOKENS,)
    first = (block // token_blocks) * SAMPLES
    in_length = token < length
    mask = in_length[:, None] & (k < half)[None, :]
    high_0, low_0 = _turns_per_unit(k, half, 0, AXES, LOG_BASE, LOG_BASE_LOW, TURNS, TURNS_LOW)
    high_1, low_1 = _turns_per_unit(
        k, half, AXES - 1, AXES, LOG_BASE, LOG_BASE_LOW, TURNS, TURNS_LOW
    )
    channel = 1 if CHANNELS_LAST else tl.cast(content_stride_k, tl.int64)
    cosine = tl.zeros([TOKENS, PHASES], tl.float32)
    sine = tl.zeros([TOKENS, PHASES], tl.float32)
    for step in range(SAMPLES):
        sample = (first + step).to(tl.int64)
        present = sample < batch
        # samples that share their positions share the embedding too
        if (not SHARED) or step == 0:
            where = positions + sample * position_stride_b + token * position_stride_n
            p, p_low = _position(where, in_length & present, WIDE)
            turns = _reduced(high_0[None, :], low_0[None, :], p[:, None], p_low[:, None])
            if AXES == 2:
                p, p_low = _position(where + 1, in_length & present, WIDE)
                turns += _reduced(high_1[None, :], low_1[None, :], p[:, None], p_low[:, None])
                turns -= tl.floor(turns + 0.5)
            cosine, sine = _cos_sin(turns)
            padding = turns != turns  # NaN
            cosine = tl.where(padding, 0.0, cosine)
            sine = tl.where(padding, 0.0, sine)
        here = mask & present
        row = content + sample * content_stride_b + token[:, None] * content_stride_n
        source = row + k[None, :] * channel
        target = out + (sample * length + token[:, None]) * (2 * half) + k[None, :]
        left = tl.load(source, mask=here).to(tl.float32) + cosine
        right = tl.load(source + half * channel, mask=here).to(tl.float32) + sine
        tl.store(target, left.to(out.dtype.element_ty), mask=here)
        tl.store(target + half, right.to(out.dtype.element_ty), mask=here)


def grid(batch: int, length: int, half: int, block: dict[str, int]) -> tuple[int]:
    """How many programs: one flat axis, which ends at 2³¹ - 1."""
    blocks = triton.cdiv(half, block["PHASES"]) * triton.cdiv(length, block["TOKENS"])
    return (blocks * triton.cdiv(batch, block["SAMPLES"]),)


def add_sinusoid(
    content: Tensor,
    positions: Tensor,
    base: float,
    frequency_scale: float,
    blocks: dict[str, int] | None = None,
) -> Tensor:
    """Add the embedding; see :func:`cape_plugins.fused.add_sinusoid`.

    Args:
        content: (B, N, D).
        positions: (1 or B, N, axes).
        base: of the frequencies where axes is 1.
        frequency_scale: multiplies all frequencies.
        blocks: TOKENS, PHASES and SAMPLES of a program. Default: autotuned, for which tests
            without a GPU have none.
    """
    batch, length, dim = content.shape
    axes = positions.shape[2]
    out = torch.empty(content.shape, dtype=content.dtype, device=content.device)
    if out.numel() == 0:
        return out
    content = cpu.narrow(content)
    if positions.stride(2) != 1 and axes > 1:
        positions = positions.contiguous()
    # on a plane π · w · position is w · position / 2 turns
    turns = _split(frequency_scale / (math.tau if axes == 1 else 2))
    log_base = _split(math.log(base))
    kernel = _kernel if blocks is None else _kernel.fn
    with torch.cuda.device_of(content):
        kernel[functools.partial(grid, batch, length, dim // 2)](
            out,
            content,
            positions,
            batch,
            length,
            dim // 2,
            content.element_size(),
            content.stride(0),
            content.stride(1),
            content.stride(2),
            0 if positions.shape[0] == 1 else positions.stride(0),
            positions.stride(1),
            AXES=axes,
            WIDE=positions.dtype == torch.float64,
            SHARED=positions.shape[0] == 1,
            CHANNELS_LAST=content.stride(2) == 1,
            LOG_BASE=log_base[0],
            LOG_BASE_LOW=log_base[1],
            TURNS=turns[0],
            TURNS_LOW=turns[1],
            **(blocks or {}),
        )
    return out
