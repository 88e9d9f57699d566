"""content + embedding on the CPU: by the compiled ``_rows.c``, else in chunks by torch."""

import ctypes
import functools
import importlib
import itertools
import logging
import math
import threading
from types import ModuleType

import torch
from torch import Tensor

from cape_plugins.sinusoid import embed_plane, frequencies_1d, frequencies_2d

_logger = logging.getLogger(__name__)

_CHUNK = 1 << 17  # elements of content; with their phases they stay in the second-level cache
_LEAST_PER_THREAD = 1 << 17  # elements; starting a thread costs as much as some 2^15
_KEPT = 1 << 22  # elements of an embedding that is kept for the next forward, 16 MB


@functools.cache
def compiled() -> ModuleType | None:
    """The module made of ``_rows.c`` at installation, or None (said once, as a log line)."""
    try:
        module = importlib.import_module("cape_plugins.fused._rows")
    except ImportError as error:
        _logger.info(
            "no compiled module (%s): embeddings are added by torch operations, which are slower; "
            "install a C compiler, then cape-plugins again",
            error,
        )
        return None
    content, positions = torch.ones(1, 8), torch.tensor([[0.25, -1.5]], dtype=torch.float64)
    out = torch.empty_like(content)
    _add_compiled(
        module, out, content, 8, positions, frequencies_2d(8, 1.0, content.device) / math.tau
    )
    if not torch.allclose(out, content + embed_plane(positions, 8, 1.0).float(), rtol=0, atol=1e-5):
        _logger.warning("%s adds wrongly: torch operations serve instead", module.__file__)
        return None
    return module


def add_sinusoid(content: Tensor, positions: Tensor, base: float, frequency_scale: float) -> Tensor:
    """Add the embedding, float32 or half content; see :func:`cape_plugins.fused.add_sinusoid`.

    Args:
        content: (B, N, D).
        positions: (B, N, axes), or (1, N, axes) to share them.
        base: of the frequencies where axes is 1.
        frequency_scale: multiplies all frequencies.
    """
    batch, length, dim = content.shape
    axes = positions.shape[2]
    if content.numel() == 0:
        return torch.empty(content.shape, dtype=content.dtype)
    positions = positions.to(torch.float64).contiguous()
    if positions.shape[0] == batch:
        turns = _turns(axes, dim, base, frequency_scale)
        return _add(content, positions.view(-1, axes), turns)
    # all samples share their positions: embed them once, for this forward and the next
    key = (ctypes.string_at(positions.data_ptr(), 8 * positions.numel()), axes, dim)
    make = _embedding if length * dim <= _KEPT else _embedding.__wrapped__
    embedding = make(*key, base, frequency_scale)
    out = torch.empty(content.shape, dtype=content.dtype)  # contiguous, as the fake one says
    if content.dtype == torch.float32:
        return torch.add(content, embedding, out=out)
    for sample in range(batch):  # torch casts through temporaries: of one sample, not of all
        torch.add(content[sample], embedding, out=out[sample])
    return out


def narrow(content: Tensor) -> Tensor:
    """Content; where it is one number everywhere (fairseq's zero), one row of it, repeated."""
    if any(content.stride()):
        return content
    return content[:1, :1].contiguous().expand(content.shape)


def _turns(axes: int, dim: int, base: float, frequency_scale: float) -> Tensor:
    """Turns per unit of position, (axes, dim / 2) float64."""
    device = torch.device("cpu")
    if axes == 1:
        return frequencies_1d(dim, base, frequency_scale, device)[None] / math.tau
    return frequencies_2d(dim, frequency_scale, device) / math.tau


# at most four: an image model sees one size or few after another
@functools.lru_cache(maxsize=4)
def _embedding(
    positions: bytes, axes: int, dim: int, base: float, frequency_scale: float
) -> Tensor:
    """(N, dim) float32 of the positions, (N, axes) float64 in memory."""
    with torch.inference_mode(False), torch.no_grad():
        wide = torch.frombuffer(bytearray(positions), dtype=torch.float64).view(-1, axes)
        nothing = torch.zeros((), dtype=torch.float32).expand(1, wide.shape[0], dim)
        return _add(nothing, wide, _turns(axes, dim, base, frequency_scale))[0]


def _add(content: Tensor, positions: Tensor, turns: Tensor) -> Tensor:
    """(B, N, D) + (B · N, axes) positions → (B, N, D) in content's dtype."""
    batch, length, dim = content.shape
    out = torch.empty(content.shape, dtype=content.dtype)
    content = narrow(content)
    if content.stride(2) != 1 or (batch > 1 and content.stride(0) != length * content.stride(1)):
        content = content.contiguous()
    stride = content.stride(1) if length > 1 else content.stride(0)
    rows = content.as_strided((batch * length, dim), (stride, 1))
    out_rows = out.view(-1, dim)
    module = compiled()
    if module is not None and content.dtype == torch.float32:
        _add_compiled(module, out_rows, rows, stride, positions, turns)
        return out
    chunk = max(1, _CHUNK // dim)
    for first in range(0, batch * length, chunk):
        part = slice(first, first + chunk)
        if module is not None:
            wide = rows[part].to(torch.float32)
            total = torch.empty_like(wide)
            _add_compiled(module, total, wide, dim, positions[part], turns)
            out_rows[part].copy_(total)
        else:
            _add_by_torch(out_rows[part], rows[part], positions[part], turns)
    return out


def _add_compiled(
    module: ModuleType, out: Tensor, content: Tensor, stride: int, positions: Tensor, turns: Tensor
) -> None:
    """out = content + embedding, on as many threads as torch uses.

    Args:
        module: the compiled one.
        out: (rows, dim) float32, contiguous.
        content: float32, rows of ``dim`` contiguous channels, ``stride`` elements apart.
        stride: 0 repeats one row.
        positions: (rows, axes) float64, contiguous; NaN is padding.
        turns: (axes, dim / 2) float64, contiguous, per unit of position.
    """
    rows, dim = out.shape
    axes = positions.shape[1]

    def work(first: int, last: int) -> None:
        module.add_rows(
            out.data_ptr() + 4 * dim * first,
            content.data_ptr() + 4 * stride * first,
            stride,
            positions.data_ptr() + 8 * axes * first,
            turns.data_ptr(),
            last - first,
            dim // 2,
            axes,
        )

    # plain threads, which release the GIL inside: no second OpenMP runtime, nothing left after fork
    parts = max(1, min(torch.get_num_threads(), rows * dim // _LEAST_PER_THREAD))
    first, *others = itertools.pairwise(rows * part // parts for part in range(parts + 1))
    threads = [threading.Thread(target=work, args=range_) for range_ in others]
    for thread in threads:
        thread.start()
    work(*first)
    for thread in threads:
        thread.join()


def _add_by_torch(out: Tensor, content: Tensor, positions: Tensor, turns: Tensor) -> None:
    """The same rows by torch's operations: whole turns are taken off in float64."""
    phase = positions[:, :1] * turns[0]
    for axis in range(1, positions.shape[1]):
        phase.addcmul_(positions[:, axis : axis + 1], turns[axis])
    part = (phase - phase.round()).to(torch.float32).mul_(math.tau)
    half = content.shape[1] // 2
    cosine, sine = part.cos(), part.sin_()
    padding = positions.isnan().any(dim=1, keepdim=True)
    torch.add(content[:, :half], cosine.masked_fill_(padding, 0), out=out[:, :half])
    torch.add(content[:, half:], sine.masked_fill_(padding, 0), out=out[:, half:])
