"""What the positions of a training step read and write, in bytes, against the whole step.

    python benchmarks/traffic.py [--pos sinpos cape rope …] [--batch 8]

Counts the tensors that go in and out of every operation of a ViT-S's forward and backward, but
views: what a GPU moves without a cache and without fusion. AdamW would come on top.
"""

import argparse

import torch
from hosts import builder, names_of
from tabulate import tabulate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    """Adds up the bytes that operations read and write, and their number."""

    bytes = 0
    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operation and count it."""
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten.detach.default:
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
            # expanded tensors are read from a smaller storage
            self.bytes += sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)
            self.operations += 1
        return out


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pos", nargs="+", default=("sinpos", "cape"), choices=names_of("timm"))
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    build = builder("vit_small", arguments.batch, "cpu", tiny=False)
    found = {}
    for pos in ("nopos", *arguments.pos):
        model, loss = build(pos)
        with Traffic() as traffic:
            loss(model.train()).backward()
        found[pos] = traffic
    whole = found["nopos"].bytes
    rows = [
        [pos, one.operations, one.bytes / 1e6, (one.bytes - whole) / 1e6, one.bytes / whole - 1]
        for pos, one in found.items()
    ]
    head = ["ViT-S", "operations", "MB", "of them positions", "ratio to nopos"]
    print(f"forward + backward, batch {arguments.batch}, float32, counted\n")
    print(tabulate(rows, head, tablefmt="github", floatfmt=("", "", ".1f", ".2f", ".4%")))


if __name__ == "__main__":
    main()
