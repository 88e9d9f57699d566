"""What the positional embedding costs, as multiples of adding a stored table, in one run.

    python benchmarks/fused.py [--device cuda] [--dtype bfloat16] [--rounds 30]

`content + table` is the unit. On CUDA each candidate is also captured into a CUDA graph, so that
the kernels are timed and not Python's launching of them; the last column is then the share of the
bandwidth that a copy reaches.
"""

import argparse
from collections.abc import Callable

import torch
from common import machine, peak_bytes, take_turns
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
    sizes = [int(size) for size in case.split(" ", 1)[1].split(" × ")]
    content = torch.randn(*sizes, device=device, dtype=dtype, requires_grad=True)
    batch, length, dim = sizes
    lengths = torch.full((batch,), length, device=device)
    if case.startswith("ViT"):
        return PositionalEmbedding2d(dim), content, ((14, 14),)
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


def measure(case: str, training: bool, arguments: argparse.Namespace) -> list[object]:
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
    memory = [
        (peak_bytes(candidates[name], arguments.device) - size) / size
        for name in ("plain", "fused")
    ]
    shown = [ratios[name] for name in ("copy", "plain", "compiled", "fused")]
    row = [case, "train" if training else "eval", f"{1e3 * unit:.2f} ms", *shown, *memory]
    if arguments.device == "cuda":
        graphs = {name: captured(candidates[name]) for name in ("table", "copy", "fused")}
        _, kernels = take_turns(graphs, "table", arguments.rounds)
        row += [kernels["fused"], 100 * kernels["copy"] / kernels["fused"]]
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    rows = [measure(case, training, arguments) for case in CASES for training in (True, False)]
    head = ["", "", "content + table", "copy", "plain", "plain, torch.compile", "fused"]
    head += ["extra memory, plain", "extra memory, fused"]
    if arguments.device == "cuda":
        head += ["fused, CUDA graph", "% of a copy's bandwidth"]
    print(f"{machine(arguments.device)}, {arguments.dtype}\n")
    print(tabulate(rows, head, tablefmt="github", floatfmt=".2f"))
    print(
        "\nratios to content + table; extra memory beyond the sum itself, in multiples of content"
    )


if __name__ == "__main__":
    main()
