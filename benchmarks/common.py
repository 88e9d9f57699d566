"""What the benchmarks share: options, timing in turns, and tables that a cut-off run leaves whole.

Candidates take turns, and ratios are taken within each turn.
"""

import argparse
import csv
import ctypes
import gc
import platform
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def command(doc: str | None, rounds: int, dtypes: str | None = None) -> argparse.ArgumentParser:
    """The options that the benchmarks share.

    Args:
        doc: the script's docstring; its first line becomes the help.
        rounds: their default number.
        dtypes: ``nargs`` of --dtype. Default: one.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--device", default="cpu", type=on_device, choices=("cpu", "cuda"))
    names = ("float32", "bfloat16", "float16")
    default = ["float32"] if dtypes else "float32"
    parser.add_argument("--dtype", nargs=dtypes, default=default, choices=names)
    parser.add_argument("--rounds", type=int, default=rounds)
    add_outputs(parser)
    return parser


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """The options of a :class:`Table`."""
    parser.add_argument("--csv", type=Path, help="also append the numbers there")
    parser.add_argument("--label", default="", help="of the measured code, for the CSV's rows")


def on_device(name: str) -> str:
    """Check a ``--device``."""
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("torch sees no GPU here: leave it out, or choose cpu")
    return name


def autocast(arguments: argparse.Namespace) -> torch.autocast:
    """Mixed precision where ``--dtype`` is not float32."""
    dtype = getattr(torch, arguments.dtype)
    return torch.autocast(arguments.device, dtype, enabled=dtype != torch.float32)


def take_turns(
    candidates: dict[str, Callable[[], object]],
    unit: str,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, dict[str, float]]:
    """Time candidates in turn; a machine that slows down slows all of them.

    Every other turn goes backwards: what runs after another finds its memory and caches.

    Args:
        candidates: name → what to run; its result is dropped.
        unit: the candidate that the others are compared with.
        rounds: turns after three of warm-up.
        clock: tells the time in seconds.

    Returns:
        the unit's median time in seconds, and each candidate's median ratio to it.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    cuda = torch.cuda.is_available()
    order = list(candidates.items())
    for turn in range(-3, rounds):
        for name, run in order if turn % 2 else reversed(order):
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            run()
            if cuda:
                torch.cuda.synchronize()
            if turn >= 0:
                taken[name].append(clock() - start)
    ratios = {
        name: statistics.median(a / b for a, b in zip(times, taken[unit], strict=True))
        for name, times in taken.items()
    }
    return statistics.median(taken[unit]), ratios


def peak_bytes(run: Callable[[], object], device: str) -> int:
    """Memory that a call needs at its worst, beyond what is there before it, in bytes."""
    run()  # compiles, tunes, fills caches
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # glibc: what it keeps would be taken again without a trace
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = _status("VmRSS")
    run()
    return max(resource.getpagesize(), _status("VmHWM") - before)  # it is no finer than a page


def waits(run: Callable[[], object], device: str) -> int | None:
    """How often a call makes the CPU wait for the GPU; None on the CPU."""
    if device != "cuda":
        return None
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in found)


def _status(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if field in line)
    return 1024 * int(line.split()[1])


class Table:
    """A table whose rows are printed, and appended to a CSV file, as soon as they are known.

    Args:
        shown: the columns to print.
        arguments: ``csv`` (Path or None), ``label`` and ``device``; the latter two stand in every
            row of the CSV file, with the machine.
        title: printed above.
    """

    def __init__(self, shown: Sequence[str], arguments: argparse.Namespace, title: str) -> None:
        self.shown, self.csv = shown, arguments.csv
        self.known = dict(machine=machine(arguments.device), label=arguments.label)
        lines = [f"{title}; {', '.join(word for word in self.known.values() if word)}", ""]
        lines.append(self._line(shown))
        lines.append("|---" * len(shown) + "|")
        print("\n".join(lines), flush=True)

    def add(self, **row: Any) -> None:
        """Print a row and append it."""
        if self.csv:
            append_csv(self.csv, [self.known | row])
        cells = [row[name] for name in self.shown]
        print(self._line([_in_words(cell) for cell in cells]), flush=True)

    def end(self, note: str = "") -> None:
        """Leave the table, with a note below."""
        print(f"\n{note}\n" if note else "", flush=True)

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"


def _in_words(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def append_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows of one kind to a CSV file, which begins with their columns."""
    begins = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        if begins:
            writer.writeheader()
        writer.writerows(rows)


def machine(device: str) -> str:
    """The machine, in words."""
    if device == "cuda":
        where = torch.cuda.get_device_name()
    else:
        where = f"{torch.get_num_threads()} threads of {processor()}"
    return f"{where}, torch {torch.__version__}"


def processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
