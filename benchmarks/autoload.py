"""What `import torch` costs more because cape-plugins is installed.

    python benchmarks/autoload.py [--repeats 20]

Two measures, each in fresh interpreters: the hook itself (importing cape_plugins.autoload and
calling install, as torch does), and the whole `import torch` with autoload on and off, alternating.
The second also holds torch's own scan of the entry points, which it pays with or without us.
"""

import argparse
import os
import statistics
import subprocess
import sys

from tabulate import tabulate

HOOK = """
import os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
start = time.perf_counter()
from cape_plugins.autoload import install
install()
print(1e3 * (time.perf_counter() - start))
"""
IMPORT_TORCH = """
import time
start = time.perf_counter()
import torch
print(1e3 * (time.perf_counter() - start))
"""


def milliseconds(code: str, autoload: str = "1") -> float:
    """Run code that prints a time in a fresh interpreter."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    command = [sys.executable, "-c", code]
    return float(subprocess.check_output(command, env=environment, text=True))


def row(name: str, times: list[float]) -> list[object]:
    """Name, minimum, median, maximum."""
    return [name, min(times), statistics.median(times), max(times)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    milliseconds(IMPORT_TORCH)  # warms the file cache
    hook = [milliseconds(HOOK) for _ in range(repeats)]
    pairs = [(milliseconds(IMPORT_TORCH, "0"), milliseconds(IMPORT_TORCH)) for _ in range(repeats)]
    off, on = zip(*pairs, strict=True)
    rows = [
        row("the hook: import cape_plugins.autoload, install()", hook),
        row("import torch, autoload off", list(off)),
        row("import torch, autoload on", list(on)),
        row("difference of neighbours", [b - a for a, b in pairs]),
    ]
    print(tabulate(rows, ["ms", "min", "median", "max"], tablefmt="github", floatfmt=".2f"))


if __name__ == "__main__":
    main()
