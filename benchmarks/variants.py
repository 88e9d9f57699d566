"""What every variant of the table costs in every host, as multiples of one of them, in one run.

    python benchmarks/variants.py [--cases vit_small wmt_base asr_12] [--pos nopos cape …]
        [--unit nopos] [--batch 8] [--device cuda] [--dtype bfloat16] [--compile] [--cpu-time]
        [--rounds 7] [--csv table.csv]

A training step is forward, backward and AdamW, in the host's own training mode. Memory is what a
step needs at its worst beyond weights and optimizer: gradients and what backward needs of forward.
Waits are how often a step makes the CPU wait for the GPU, the host's own waits included.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor, nn

from cape_plugins.variants import VARIANTS
from common import append_csv, autocast, command, machine, peak_bytes, take_turns, waits
from hosts import CASES, builder, names_of

DEFAULT_CASES = ("vit_small", "wmt_base", "asr_12", "conformer_12")


def training_step(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], arguments: Namespace
) -> Callable[[], None]:
    """Forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    called = torch.compile(model, backend=arguments.compile) if arguments.compile else model

    def step() -> None:
        with autocast(arguments):
            value = loss(called)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(case: str, arguments: Namespace) -> list[dict[str, object]]:
    """A row for each variant of a case.

    Raises:
        ImportError: its host is missing.
    """
    names = names_of(CASES[case][0])
    chosen = arguments.pos or names
    build = builder(case, arguments.batch, arguments.device, arguments.tiny)
    steps, parameters = {}, {}
    for pos in names:
        if pos in {*chosen, arguments.unit}:
            model, loss = build(pos)
            model.to(arguments.device).train()
            parameters[pos] = sum(p.numel() for p in model.parameters())
            steps[pos] = training_step(model, loss, arguments)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    seconds, ratios = take_turns(steps, arguments.unit, arguments.rounds, clock)
    memory = {pos: peak_bytes(step, arguments.device) for pos, step in steps.items()}
    unit = arguments.unit
    rows: list[dict[str, object]] = [
        dict(
            machine=machine(arguments.device),
            case=f"tiny {case}" if arguments.tiny else case,
            batch=arguments.batch,
            dtype=arguments.dtype,
            compiled=arguments.compile or "",
            clock="CPU time" if arguments.cpu_time else "",
            variant=pos,
            unit=unit,
            step=ratios[pos],
            memory=memory[pos] / memory[unit],
            parameters=parameters[pos] / parameters[unit],
            waits=waits(steps[pos], arguments.device),
            unit_ms=1e3 * seconds,
            unit_memory_mb=memory[unit] / 1e6,
            unit_parameters=parameters[unit],
        )
        for pos in steps
    ]
    torch.compiler.reset()
    return rows


def tables(rows: list[dict[str, object]]) -> str:
    """The ratios of all cases side by side, and what 1 stands for in each."""
    first = rows[0]
    known = ("machine", "dtype", "compiled", "clock")
    how = ", ".join(str(first[key]) for key in known if first[key])
    lines = [f"{how}, batch {first['batch']}; 1 is {first['unit']}:", ""]
    of_variant: dict[object, dict[str, object]] = {}
    for row in rows:
        if row["variant"] == row["unit"]:
            lines.append(
                f"- {row['case']}: {row['unit_ms']:.0f} ms, {row['unit_memory_mb']:.0f} MB, "
                f"{row['unit_parameters'] / 1e6:.1f} M parameters"
            )
        of_variant.setdefault(row["variant"], {"": row["variant"]}).update(
            {
                f"{row['case']}, {what}": row[what]
                for what in ("step", "memory", "parameters", "waits")
                if row[what] is not None
            }
        )
    head = list(dict.fromkeys(column for columns in of_variant.values() for column in columns))
    ratios = [[columns.get(column) for column in head] for columns in of_variant.values()]
    return "\n".join([*lines, "", tabulate(ratios, head, tablefmt="github", floatfmt=".3f")])


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=7)
    parser.add_argument("--cases", nargs="+", default=DEFAULT_CASES, choices=CASES)
    parser.add_argument("--pos", nargs="+", choices=VARIANTS, help="default: all of the host's")
    parser.add_argument("--unit", default="nopos", choices=VARIANTS, help="the others' divisor")
    parser.add_argument("--batch", type=int, default=8, help="images, pairs or utterances")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND",
                        help="torch.compile, by inductor unless another is named")  # fmt: skip
    parser.add_argument("--cpu-time", action="store_true",
                        help="for a busy machine, with OMP_NUM_THREADS=1")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    parser.add_argument("--csv", type=Path, help="also append the numbers there")
    arguments = parser.parse_args()
    for case in arguments.cases:
        names = names_of(CASES[case][0])
        if arguments.unit not in names:
            parser.error(f"--unit {arguments.unit}: {case} has {', '.join(names)}")
    rows = []
    for case in arguments.cases:
        try:
            found = measure(case, arguments)
        except ImportError as error:
            print(f"{case} left out, its host is missing here: {error}\n")
            continue
        rows += found
        if arguments.csv:
            append_csv(arguments.csv, found)
    if not rows:
        parser.exit(1, "none of the hosts is installed here\n")
    print(tables(rows))


if __name__ == "__main__":
    main()
