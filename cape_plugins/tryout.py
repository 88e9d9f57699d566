"""A variant of another package is tried once when a model is built, before it is trained.

Its methods run on a few tokens, two of them without a position: what would give NaN for them, or
writes into positions that others share, is told here, and not in the middle of a training.
"""

import torch
from torch import Tensor

from cape_plugins.added import Added
from cape_plugins.attention import Given, PositionalAttention
from cape_plugins.checks import is_plain
from cape_plugins.positions import patch_grid
from cape_plugins.returned import (
    Misfit,
    check_bias,
    check_embedded,
    check_embedding,
    check_given,
)
from cape_plugins.sizes import Part


def try_out(part: Added | PositionalAttention) -> None:
    """Run the methods of a part on the CPU, where its parameters are there.

    What they raise themselves is left to the first forward: few tokens may be too few for them.

    Raises:
        ValueError: a result has another shape than it must have, or is NaN for tokens without a
            position; or positions are written into.
    """
    of_package = not type(part).__module__.startswith("cape_plugins.")
    tensors = [*part.parameters(), *part.buffers()]
    on_cpu = all(x.device.type == "cpu" for x in tensors) and is_plain(*tensors)
    if not (of_package and on_cpu):
        return
    training = part.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            part.eval()
            _try_added(part) if isinstance(part, Added) else _try_attention(part)
    except Misfit:
        raise
    except Exception:
        return
    finally:
        part.train(training)


def _places(part: Part) -> tuple[Tensor, Tensor]:
    """Positions (2, 8, axes), of a class token, six tokens or patches, and padding; and a mask."""
    line = torch.arange(6.0)[:, None] * part.sizes.spacing
    known = line if part.sizes.axes == 1 else patch_grid(2, 3)
    nowhere = torch.full_like(known[:1], torch.nan)
    where = torch.cat([nowhere, known, nowhere])[None].repeat(2, 1, 1)
    mask = torch.ones(2, 1, 1, 8, dtype=torch.bool)
    mask[..., -1] = False
    return where, mask


def _numbers(part: Part, *shape: int) -> Tensor:
    dtype = next((x.dtype for x in part.parameters()), torch.get_default_dtype())
    return torch.arange(torch.Size(shape).numel()).view(shape).sin().to(dtype)


def _try_added(part: Added) -> None:
    where, _ = _places(part)
    content, before = _numbers(part, 2, where.shape[1], part.sizes.dim), where.clone()
    if part.needs_content():
        found = part.add(content, where)
        _check_numbers(part, "add", found)
    else:
        found = part.embedding(where, content.dtype)
        check_embedding(part, found, where, part.sizes.dim)
        _check_numbers(part, "embedding", found)
    _check_untouched(part, "add" if part.needs_content() else "embedding", where, before)


def _try_attention(part: PositionalAttention) -> None:
    where, mask = _places(part)
    query = _numbers(part, 2, part.sizes.heads, where.shape[1], part.sizes.head_dim)
    before, key = where.clone(), query.flip(2)
    given = part.prepare(where, where, mask, query.dtype)
    check_given(part, given, Given)
    _check_untouched(part, "prepare", where, before)
    rows = [x if x is None else x.clone() for x in given]
    embedded = part.embed_both(query, key, given)
    check_embedded(part, embedded, query, key)
    for one in embedded:
        _check_numbers(part, "embed", one)
    bias = part.bias(*embedded, given)
    check_bias(part, bias, *embedded)
    if bias is not None:
        _check_numbers(part, "bias", bias)
    for now, was in zip(given, rows, strict=True):
        _check_untouched(part, "embed or bias", now, was)


def _check_numbers(part: Part, method: str, found: Tensor) -> None:
    if found.isnan().any():
        raise Misfit(
            f"{part.said(method)} gives NaN where a token has no position (padding, a class token; "
            "its position is NaN), which would spread: make a number of it, for instance by "
            "nan_to_num(0.0)"
        )


def _check_untouched(part: Part, method: str, now: Tensor | None, before: Tensor | None) -> None:
    if now is None or before is None:
        return
    same = (now == before) | (now != now) & (before != before)  # NaN too
    if not same.all():
        raise Misfit(
            f"{part.said(method)} writes into what it gets, which other layers and models share: "
            "write `x = x + …` in place of `x += …`, or into a clone()"
        )
