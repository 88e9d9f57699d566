"""What the positional embedding costs, as multiples of adding a stored table, in one run.

    python benchmarks/fused.py [--device cuda] [--dtype bfloat16] [--rounds 30]
        [--cases 'text 64 × 512 × 512' …] [--csv table.csv]

`content + table` is the unit. On CUDA candidates are also captured into CUDA graphs, so that the
kernels are timed and not Python's launching of them; the last columns are then the bandwidth of a
copy, counting bytes read and written, and which share of it the operator reaches: all that the
module does (in training it draws and augments positions), and the sum alone, from given positions.
"""

import math
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from common import append_csv, command, machine, peak_bytes, take_turns
from tabulate import tabulate
from torch import Tensor, nn

from cape_plugins import (
    PositionalEmbedding1d,
    PositionalEmbedding2d,
    frame_times,
    fused,
    token_positions,
)

CASES = (
    "ViT-B 256 × 196 × 768",
    "ViT-B 32 × 196 × 768",  # fits the last-level cache of many processors
    "speech 16 × 1500 × 768",
    "text 64 × 512 × 512",
)


def build(case: str, device: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor, tuple]:
    """A host's settings: module, content, and what else its forward takes."""
    sizes = _sizes(case)
    content = torch.randn(*sizes, device=device, dtype=dtype, requires_grad=True)
    batch, length, dim = sizes
    lengths = torch.full((batch,), length, device=device)
    if case.startswith("ViT"):
        side = math.isqrt(length)
        return PositionalEmbedding2d(dim), content, ((side, length // side),)
    if case.startswith("speech"):
        module = PositionalEmbedding1d(
            dim,
            max_global_shift=30.0,
            max_local_shift=0.015,
            max_global_scale=1.1,
            frequency_scale=30.0,
        )
        return module, content, (frame_times(lengths, 0.03, length),)
    module = PositionalEmbedding1d(
        dim, max_global_shift=5.0, max_local_shift=0.5, mean_normalize=False
    )
    # one row of positions in evaluation, as where no sequence is padded
    return module, content, (token_positions(lengths[:1], length),)


def case(text: str) -> str:
    """Check a case of the command line."""
    if not re.fullmatch(r"(ViT-\w+|speech|text) \d+ × \d+ × \d+", text) or _sizes(text)[2] % 2:
        raise ArgumentTypeError(f"{text!r} is not like {CASES[-1]!r}, the last number even")
    return text


def _sizes(case: str) -> list[int]:
    return [int(size) for size in case.split(" ", 1)[1].split(" × ")]


def given_positions(case: str, device: str) -> Tensor:
    """Positions of each sample, (B, N, axes), as the module's augmentation leaves them."""
    batch, length, _ = _sizes(case)
    axes = 2 if case.startswith("ViT") else 1
    return torch.rand(batch, length, axes, device=device) * (4 if axes == 2 else length)


def plainly(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same on the plain path."""

    def call(*arguments: object) -> Tensor:
        fused.ENABLED = False
        try:
            return run(*arguments)
        finally:
            fused.ENABLED = True

    return call


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def measure(case: str, training: bool, arguments: Namespace) -> dict[str, object]:
    """One row of the table."""
    dtype = getattr(torch, arguments.dtype)
    module, content, rest = build(case, arguments.device, dtype)
    module.train(training)
    table = torch.randn_like(content[:1]).detach()
    compiled = plainly(torch.compile(module, dynamic=False))
    candidates = {
        "table": lambda: content + table,
        "copy": lambda: content.detach().clone(),
        "plain": lambda: plainly(module)(content, *rest),
        "compiled": lambda: compiled(content, *rest),
        "fused": lambda: module(content, *rest),
    }
    unit, ratios = take_turns(candidates, "table", arguments.rounds)
    size = content.numel() * content.element_size()
    row: dict[str, object] = {"case": case, "mode": "train" if training else "eval"}
    row["content + table, ms"] = 1e3 * unit
    row["copy"], row["plain"] = ratios["copy"], ratios["plain"]
    row["plain, torch.compile"], row["fused"] = ratios["compiled"], ratios["fused"]
    for name in ("plain", "fused"):
        extra = peak_bytes(candidates[name], arguments.device) - size
        row[f"extra memory, {name}"] = extra / size
    if arguments.device == "cuda":
        positions, still = given_positions(case, "cuda"), content.detach()
        candidates["given"] = lambda: fused.add_unchecked(still, positions, 10_000.0, 1.0)
        graphs = {name: captured(candidates[name]) for name in ("table", "copy", "fused", "given")}
        unit, kernels = take_turns(graphs, "table", arguments.rounds)
        row["copy, GB/s"] = 2 * size / (unit * kernels["copy"]) / 1e9
        row["fused, % of that"] = 100 * kernels["copy"] / kernels["fused"]
        row["positions given, % of that"] = 100 * kernels["copy"] / kernels["given"]
        row["stored table, % of that"] = 100 * kernels["copy"]
    return row


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=30)
    parser.add_argument("--cases", nargs="+", type=case, default=CASES, metavar="CASE",
                        help=f"default: {', '.join(CASES)}")  # fmt: skip
    parser.add_argument("--csv", type=Path, help="also append the numbers there")
    arguments = parser.parse_args()
    rows = [
        measure(case, training, arguments) for case in arguments.cases for training in (True, False)
    ]
    where = machine(arguments.device)
    print(f"{where}, {arguments.dtype}\n")
    print(tabulate(rows, "keys", tablefmt="github", floatfmt=".2f"))
    print(
        "\nratios to content + table; extra memory beyond the sum itself, in multiples of content"
    )
    if arguments.csv:
        append_csv(
            arguments.csv, [dict(machine=where, dtype=arguments.dtype, **row) for row in rows]
        )


if __name__ == "__main__":
    main()
