"""content + embedding on the CPU: compiled where a C compiler is found, else in chunks by torch."""

import math

import torch
from torch import Tensor

from cape_plugins.fused import native
from cape_plugins.sinusoid import frequencies_1d, frequencies_2d

_CHUNK = 1 << 17  # elements of content; with their phases they stay in the second-level cache


def add_sinusoid(content: Tensor, positions: Tensor, base: float, scale: float) -> Tensor:
    """Add the embedding, float32 or half content; see :func:`cape_plugins.fused.add_sinusoid`.

    Args:
        content: (B, N, D).
        positions: (B, N, axes), or (1, N, axes) to share them.
        base, scale: of the frequencies where axes is 1.
    """
    batch, length, dim = content.shape
    axes = positions.shape[2]
    positions = positions.to(torch.float64).contiguous()
    radians = (
        frequencies_1d(dim, base, scale, positions.device)[None]
        if axes == 1
        else frequencies_2d(dim, positions.device)
    )
    turns = radians / (2 * math.pi)
    if positions.shape[0] == batch:
        return _add(content, positions.view(-1, axes), turns)
    # all samples share their positions: embed them once, as one sample
    nothing = torch.zeros((), dtype=torch.float32).expand(1, length, dim)
    embedding = _add(nothing, positions.view(-1, axes), turns)
    out = torch.empty(content.shape, dtype=content.dtype)  # contiguous, as the fake one says
    if content.dtype == torch.float32:
        return torch.add(content, embedding, out=out)
    for sample in range(batch):  # torch casts through temporaries: of one sample, not of all
        torch.add(content[sample], embedding[0], out=out[sample])
    return out


def narrow(content: Tensor) -> Tensor:
    """Content; where it is one number everywhere (fairseq's zero), one row of it, repeated."""
    if any(content.stride()):
        return content
    return content[:1, :1].contiguous().expand(content.shape)


def _add(content: Tensor, positions: Tensor, turns: Tensor) -> Tensor:
    """(B, N, D) + (B · N, axes) positions → (B, N, D) in content's dtype."""
    batch, length, dim = content.shape
    out = torch.empty(content.shape, dtype=content.dtype)
    if out.numel() == 0:
        return out
    content = narrow(content)
    if content.stride(2) != 1 or (batch > 1 and content.stride(0) != length * content.stride(1)):
        content = content.contiguous()
    stride = content.stride(1) if length > 1 else content.stride(0)
    rows = content.as_strided((batch * length, dim), (stride, 1))
    out_rows = out.view(-1, dim)
    compiled = native.library() is not None
    if compiled and content.dtype == torch.float32:
        native.add_rows(out_rows, rows, stride, positions, turns)
        return out
    chunk = max(1, _CHUNK // dim)
    for first in range(0, batch * length, chunk):
        part = slice(first, first + chunk)
        if compiled:
            wide = rows[part].to(torch.float32)
            total = torch.empty_like(wide)
            native.add_rows(total, wide, dim, positions[part], turns)
            out_rows[part].copy_(total)
        else:
            _add_by_torch(out_rows[part], rows[part], positions[part], turns)
    return out


def _add_by_torch(out: Tensor, content: Tensor, positions: Tensor, turns: Tensor) -> None:
    """The same rows by torch's operations: whole turns are taken off in float64."""
    phase = positions[:, :1] * turns[0]
    for axis in range(1, positions.shape[1]):
        phase.addcmul_(positions[:, axis : axis + 1], turns[axis])
    part = (phase - phase.round()).to(torch.float32).mul_(2 * math.pi)
    half = content.shape[1] // 2
    cosine, sine = part.cos(), part.sin_()
    padding = positions.isnan().any(dim=1, keepdim=True)
    torch.add(content[:, :half], cosine.masked_fill_(padding, 0), out=out[:, :half])
    torch.add(content[:, half:], sine.masked_fill_(padding, 0), out=out[:, half:])
