"""What the embedding modules cost, as multiples of adding a stored table, in one run.

python benchmarks/embedding.py [--device cuda] [--dtype bfloat16]
"""

import argparse

import torch
from tabulate import tabulate
from torch.utils.benchmark import Timer

from cape_plugins import PositionalEmbedding1d, PositionalEmbedding2d, token_positions


def median_ms(statement: str, **names: object) -> float:
    """Median time of a statement in milliseconds."""
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return 1e3 * timer.blocked_autorange(min_run_time=1.0).median


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    options = dict(device=arguments.device, dtype=getattr(torch, arguments.dtype))

    vision = torch.randn(32, 196, 768, **options)
    text = torch.randn(16, 512, 512, **options)
    positions = token_positions([512] * 16, 512, device=arguments.device)
    cases = {
        "vision 32 × 196 × 768": (vision, PositionalEmbedding2d(768), ((14, 14),)),
        "text 16 × 512 × 512": (
            text,
            PositionalEmbedding1d(
                512, max_global_shift=5.0, max_local_shift=0.5, mean_normalize=False
            ),
            (positions,),
        ),
    }
    rows = []
    for name, (content, module, rest) in cases.items():
        table = torch.randn_like(content[:1])
        unit = median_ms("content + table", content=content, table=table)
        row = [name, f"{unit:.2f} ms", median_ms("content.clone()", content=content) / unit]
        for mode in (True, False):
            names = dict(module=module.train(mode), content=content, rest=rest)
            row.append(median_ms("module(content, *rest)", **names) / unit)
        rows.append(row)
    print(f"{arguments.device}, {arguments.dtype}, {torch.get_num_threads()} threads")
    head = ["", "content + table", "copy", "cape, training", "cape, evaluation"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".1f"))


if __name__ == "__main__":
    main()
