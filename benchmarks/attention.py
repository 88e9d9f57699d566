"""What positions cost in attention alone, as multiples of attention without them, in one run.

    python benchmarks/attention.py [--device cuda] [--dtype bfloat16] [--rounds 10]
        [--lengths 1024 4096 8192] [--pos rope alibi relpos] [--csv table.csv] [--label before]

Forward and backward. Positions are one list for the whole batch, as in evaluation, or each sample
has its own, as under CAPE in training; relpos does not look at them. What a host makes of them once
for all layers is made before. Memory is what a call needs at its worst beyond its inputs.
"""

from argparse import Namespace
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cape_plugins import Positions
from cape_plugins.variants import get, names
from common import Table, autocast, command, peak_bytes, take_turns

# batch, heads, length, head_dim, context
CASES = {
    "speech 10 s, context 26.8 s": (4, 4, 333, 192, 893),
    "speech 45 s, context 26.8 s": (1, 4, 1500, 192, 893),
    "speech 45 s, context 6 s": (1, 4, 1500, 192, 200),
    "text 100 tokens, context 150": (16, 8, 100, 64, 150),
    "text 512 tokens, context 150": (4, 8, 512, 64, 150),
}
POS = ("rope", "alibi", "relpos")
SHOWN = ("case", "positions", "variant", "ms", "ratio", "memory_mb")


def step(
    attend: Callable[..., Tensor], inputs: list[Tensor], also: list[Tensor], grad: Tensor
) -> None:
    """Forward, and the gradients of queries, keys, values and what else is learned."""
    torch.autograd.grad(attend(*inputs), [*inputs, *also], grad)


def measure(case: str, sizes: tuple[int, ...], arguments: Namespace, table: Table) -> None:
    """A row for attention without positions, and one for each variant and kind of positions."""
    batch, heads, length, dim, context = sizes
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    shape = (batch, heads, length, dim)
    inputs = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3)]
    grad = torch.randn(shape, device=device, dtype=dtype)
    shared = torch.arange(length, dtype=torch.float32, device=device)[None]  # (1, N)
    own = shared * (1 + torch.rand(batch, 1, device=device))  # (B, N)

    def without() -> None:
        step(F.scaled_dot_product_attention, inputs, [], grad)

    def row(positions: str, pos: str, run: Callable[[], None]) -> None:
        memory = peak_bytes(run, device)
        seconds, ratios = take_turns({"none": without, pos: run}, "none", arguments.rounds)
        table.add(
            case=case,
            dtype=arguments.dtype,
            positions=positions,
            variant=pos,
            ms=1e3 * seconds * ratios[pos],
            ratio=ratios[pos],
            memory_mb=memory / 1e6,
        )

    row("", "none", without)
    for pos in arguments.pos:
        kinds = {"shared": shared, "own": own}
        asked = dict(relpos_context=context, max_local_shift=0.5, random_range=1e4)
        taken = get(pos, 1).options(1)
        options = {name: asked[name] for name in asked if name in taken}
        if "relpos_context" in options:
            kinds = {"": shared}  # it counts tokens
        elif batch == 1:
            del kinds["own"]
        for kind, positions in kinds.items():
            module = Positions(pos, dim=heads * dim, heads=heads, layers=1, **options).eval()
            (layer,) = module.attentions
            assert layer is not None
            layer.to(device)
            with autocast(arguments):
                _, given = module(None, positions)

            def run(layer=layer, given=given) -> None:
                def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                    return layer(query, key, value, given)[0]

                step(attend, inputs, list(layer.parameters()), grad)

            row(kind, pos, run)


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=10)
    with_attention = [pos for pos in names(1) if get(pos, 1).attends]
    parser.add_argument("--pos", nargs="+", default=POS, choices=with_attention)
    parser.add_argument("--lengths", nargs="+", type=int, metavar="TOKENS",
                        help="4 × 8 heads of 64 channels, in place of the cases")  # fmt: skip
    arguments = parser.parse_args()
    cases = CASES
    if arguments.lengths:
        cases = {f"{n} tokens": (4, 8, n, 64, min(n, 893)) for n in arguments.lengths}
    title = f"{arguments.dtype}, forward + backward of attention alone, ratio to no positions"
    table = Table(SHOWN, arguments, title)
    for case, sizes in cases.items():
        measure(case, sizes, arguments, table)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
