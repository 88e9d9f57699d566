"""A variant of another package is tried once when a model is built: what would hurt in silence.

That is a NaN that spreads from tokens without a position, and a key that is seen although the mask
hides it. All else that a variant must do, :data:`cape_plugins.testing.CHECKS` say.
"""

import torch
from torch import Tensor

from cape_plugins.added import Added
from cape_plugins.attention import Given, PositionalAttention
from cape_plugins.checks import is_plain

#: what is said of a method, or of a part, that gives it
SPREADS = (
    "gives NaN where a token has no position (padding, a class token; its position is NaN), which "
    "would spread: make a number of it, for instance by nan_to_num(0.0)"
)


class Misfit(ValueError):
    """What a part of a variant gives, or does, is not what its base class asks for."""


def try_out(part: Added | PositionalAttention) -> None:
    """Run a part on the CPU, where its parameters are there, on a class token and padding too.

    What its methods raise themselves is left to the first forward: few tokens may be too few.

    Raises:
        Misfit: it gives NaN, a hidden key changes what a query gets, or there is no ``Given``.
    """
    tensors = [*part.parameters(), *part.buffers()]
    on_cpu = all(x.device.type == "cpu" for x in tensors) and is_plain(*tensors)
    if type(part).__module__.startswith("cape_plugins.") or not on_cpu:
        return
    training, found, changed = part.training, None, None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            part.eval()
            found, changed = _run(part, 1.0), _run(part, 2.0)
    except Misfit:
        raise
    except Exception:
        return
    finally:
        part.train(training)
    of = f"variant {part.pos}: {type(part).__name__}"
    if found.isnan().any():
        raise Misfit(f"{of} {SPREADS}")
    if not torch.allclose(found, changed, atol=1e-5):
        raise Misfit(
            f"{of} lets a query see a key that the mask hides, padding or a later token: hand the "
            "mask on in Given(mask=…), or put it into Given(bias=…) by merge"
        )


def _run(part: Added | PositionalAttention, hidden: float) -> Tensor:
    """What it makes of tokens of which the last, ``hidden``, is padding: of all but that."""
    spacing, axes = part.sizes.spacing, part.sizes.axes
    where = torch.tensor([torch.nan, 0.0, 1.0, 2.0, torch.nan])[:, None].expand(-1, axes) * spacing
    where = where[None]
    dtype = next((x.dtype for x in part.parameters()), torch.get_default_dtype())
    if isinstance(part, Added):
        content = torch.ones(1, 5, part.sizes.dim, dtype=dtype)
        content[:, -1] = hidden
        return part(content, where, dtype)[:, :-1]
    mask = torch.tensor([True, True, True, True, False]).view(1, 1, 1, 5)
    x = torch.arange(5 * part.sizes.head_dim).sin().to(dtype).view(1, 1, 5, -1)
    x = x.expand(1, part.sizes.heads, -1, -1).clone()
    x[:, :, -1] = hidden
    given = Given(where, where, mask)
    if not part.prepares:
        given = part.prepare(where, where, mask, dtype)
    if not isinstance(given, Given):
        raise Misfit(
            f"{part.said('prepare')} must return Given(queries, keys, mask), as `return "
            f"super().prepare(queries, keys, mask, dtype)` does: it gave a {type(given).__name__}"
        )
    return part(x, x, x, given)[0][:, :, :-1]
