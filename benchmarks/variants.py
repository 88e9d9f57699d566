"""What every variant of the table costs in every host, as multiples of one of them, in one run.

    python benchmarks/variants.py [--cases vit_small wmt_base asr_12] [--pos nopos cape …]
        [--unit nopos] [--batch 8, or one for each case] [--device cuda] [--dtype bfloat16]
        [--inference] [--compile] [--cpu-time] [--rounds 7] [--csv table.csv] [--label before]

Each variant takes turns with the one that it is compared with, and its row is printed before the
next is built: a run that is cut off has lost no row.

A training step is forward, backward and AdamW, in the host's own training mode. Memory is what a
step needs at its worst beyond weights and optimizer: gradients and what backward needs of forward.
Waits are how often a step makes the CPU wait for the GPU, the host's own waits included. With
--inference a step is one forward in evaluation, without gradients.
"""

import time
from argparse import Namespace
from collections.abc import Callable

import torch
from torch import Tensor, nn

from common import Table, autocast, command, peak_bytes, take_turns, waits
from hosts import CASES, STOCK, builder, names_of

SHOWN = ("variant", "unit_ms", "step", "memory", "parameters", "waits")
DEFAULT_CASES = ("vit_small", "wmt_base", "asr_12", "conformer_12")


def training_step(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], arguments: Namespace
) -> Callable[[], None]:
    """Forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        with autocast(arguments):
            value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def inference_step(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], arguments: Namespace
) -> Callable[[], None]:
    """Forward alone."""

    def step() -> None:
        with torch.inference_mode(), autocast(arguments):
            loss(model)

    return step


def measure(case: str, batch: int, arguments: Namespace) -> None:
    """Print a row for each variant of a case.

    Raises:
        ImportError: its host is missing.
    """
    unit, device = arguments.unit, arguments.device
    build = builder(case, batch, device, arguments.tiny)
    chosen = arguments.pos or [pos for pos in names_of(CASES[case][0]) if pos != STOCK]
    clock = time.process_time if arguments.cpu_time else time.perf_counter

    def ready(pos: str) -> tuple[Callable[[], None], int]:
        """A variant's step, and how many parameters it trains."""
        model, loss = build(pos)
        model.to(device).train(not arguments.inference)
        called = torch.compile(model, backend=arguments.compile) if arguments.compile else model
        made = inference_step if arguments.inference else training_step
        return made(called, loss, arguments), sum(p.numel() for p in model.parameters())

    of_unit, unit_parameters = ready(unit)
    unit_memory = peak_bytes(of_unit, device)
    how = [arguments.dtype, f"batch {batch}", f"1 is {unit}"]
    how += ["inference"] if arguments.inference else []
    how += [f"compiled by {arguments.compile}"] if arguments.compile else []
    how += ["CPU time"] if arguments.cpu_time else []
    table = Table(SHOWN, arguments, f"{case}, {', '.join(how)}")
    # the unit is first: what the others are multiples of
    others = [pos for pos in names_of(CASES[case][0]) if pos in chosen and pos != unit]
    for pos in (unit, *others):
        step, parameters = (of_unit, unit_parameters) if pos == unit else ready(pos)
        memory = unit_memory if pos == unit else peak_bytes(step, device)
        seconds, ratios = take_turns({unit: of_unit, pos: step}, unit, arguments.rounds, clock)
        table.add(
            case=f"tiny {case}" if arguments.tiny else case,
            batch=batch,
            dtype=arguments.dtype,
            inference=arguments.inference,
            compiled=arguments.compile or "",
            clock="CPU time" if arguments.cpu_time else "",
            variant=pos,
            unit=unit,
            step=ratios[pos],
            memory=memory / unit_memory,
            parameters=parameters / unit_parameters,
            waits=waits(step, device),
            unit_ms=1e3 * seconds,
            unit_memory_mb=unit_memory / 1e6,
            unit_parameters=unit_parameters,
        )
        del step  # and its model, before the next is built
    table.end(f"1 is {unit_memory / 1e6:.0f} MB, {unit_parameters / 1e6:.1f} M parameters")
    torch.compiler.reset()


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=7)
    parser.add_argument("--cases", nargs="+", default=DEFAULT_CASES, choices=CASES)
    every = dict.fromkeys(pos for host, _ in CASES.values() for pos in names_of(host))
    parser.add_argument("--pos", nargs="+", choices=every, help="default: all of the host's")
    parser.add_argument("--unit", default="nopos", choices=every, help="the others' divisor")
    parser.add_argument("--batch", nargs="+", type=int, default=[8],
                        help="images, pairs or utterances: one number, or one a case")  # fmt: skip
    parser.add_argument("--inference", action="store_true",
                        help="a forward in evaluation in place of a training step")  # fmt: skip
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND",
                        help="torch.compile, by inductor unless another is named")  # fmt: skip
    parser.add_argument("--cpu-time", action="store_true",
                        help="for a busy machine, with OMP_NUM_THREADS=1")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    arguments = parser.parse_args()
    for case in arguments.cases:
        names = names_of(CASES[case][0])
        if arguments.unit not in names:
            parser.error(f"--unit {arguments.unit}: {case} has {', '.join(names)}")
    batches = arguments.batch
    if len(batches) == 1:
        batches = batches * len(arguments.cases)
    if len(batches) != len(arguments.cases):
        parser.error(f"--batch: {len(batches)} numbers for {len(arguments.cases)} cases")
    measured = 0
    for case, batch in zip(arguments.cases, batches, strict=True):
        try:
            measure(case, batch, arguments)
            measured += 1
        except ImportError as error:
            print(f"{case} left out, its host is missing here: {error}\n", flush=True)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    if not measured:
        parser.exit(1, "none of the hosts is installed here\n")


if __name__ == "__main__":
    main()
