"""What relative attention costs, as multiples of attention without positions, in one run.

python benchmarks/attention.py [--device cuda] [--dtype bfloat16] [--rounds 10]
"""

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

from cape_plugins.attention import AttentionSettings
from cape_plugins.relpos import RelativeAttention
from common import command, machine, take_turns

# batch, heads, length, head_dim, context
CASES = {
    "speech 10 s, context 26.8 s": (4, 4, 333, 192, 893),
    "speech 45 s, context 26.8 s": (1, 4, 1500, 192, 893),
    "speech 45 s, context 6 s": (1, 4, 1500, 192, 200),
    "text 100 tokens, context 150": (16, 8, 100, 64, 150),
    "text 512 tokens, context 150": (4, 8, 512, 64, 150),
}


def step(out: Tensor) -> None:
    """Backward, which leaves the graph."""
    out.sum().backward(retain_graph=True)


def main() -> None:
    """Measure and print."""
    arguments = command(__doc__, rounds=10).parse_args()
    options = dict(device=arguments.device, dtype=getattr(torch, arguments.dtype))
    rows = []
    for name, (batch, heads, length, dim, context) in CASES.items():
        shape = (3, batch, heads, length, dim)
        query, key, value = torch.randn(shape, **options).requires_grad_().unbind()
        settings = AttentionSettings(dim, heads, context=context)
        keys = RelativeAttention(settings).to(**options)

        qkv = query, key, value
        candidates = {
            "none": lambda qkv=qkv: step(F.scaled_dot_product_attention(*qkv)),
            "keys": lambda qkv=qkv, keys=keys: step(keys(*qkv)[0]),
        }
        unit, ratios = take_turns(candidates, "none", arguments.rounds)
        rows.append([name, f"{1e3 * unit:.1f} ms", ratios["keys"]])
    print(
        f"{machine(arguments.device)}, {arguments.dtype}, forward + backward of attention alone\n"
    )
    head = ["", "no positions", "relpos"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".2f"))


if __name__ == "__main__":
    main()
