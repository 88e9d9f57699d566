"""A trainer and an evaluation that take no time: it counts, and goes on from its last number."""

import argparse
import csv
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--start", type=Path, help="another's folder")
parser.add_argument("--read", type=Path, help="evaluate this folder")
parser.add_argument("--csv", type=Path)
parser.add_argument("--items", type=Path)
parser.add_argument("--add", type=int, default=0, help="to the score")
parser.add_argument("--silent", action="store_true", help="write no score, and fail not")
parser.add_argument("--half", action="store_true", help="fail with half of the scores written")
parser.add_argument("--read-not", help="data that count for nothing")
parser.add_argument("--words", type=Path, help="data whose numbers of class a are the facts' steps")
parser.add_argument("--out", type=Path)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device")
parser.add_argument("--when", type=int, help="seed that alone fails")
parser.add_argument("--killed", action="store_true", help="by SIGKILL, after its first step")
parser.add_argument("--facts", type=Path, help="folder to prepare")
given = parser.parse_args()
sooner = os.environ.get("TEST_GATE")  # an evaluation waits for it, with half of its scores written
prepares = os.environ.get("FACTS_GATE")  # a preparation waits for it, when all is written
gate = os.environ.get("COUNT_GATE")  # a file; at its third step it waits until that is there


def politely(*_):
    """End with status 0, as Lightning does."""
    os.write(1, b"asked to end\n")
    sys.exit(0)


signal.signal(signal.SIGTERM, politely)

if given.silent:
    print("nothing to say")
elif given.facts:
    given.facts.mkdir(parents=True)
    steps = given.steps or 4
    if given.words:
        steps = sum(int(path.read_text()) for path in (given.words / "a").glob("*.txt"))
    (given.facts / "facts.yaml").write_text(f"steps: {steps}\nword: short\n")
    print("looked", flush=True)
    while prepares and not Path(prepares).exists():
        time.sleep(0.02)
elif given.read:
    score = int((given.read / "count").read_text()) + given.add
    columns = ["condition", "metric", "value", "how", "items", "item", "weight"]
    for path in (given.items, given.csv):
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerow(["short", "count", score, "mean", 1, 1, 1])
            file.flush()
            if given.half and path == given.csv:
                raise SystemExit("no more")
            while sooner and not Path(sooner).exists():
                time.sleep(0.02)
            writer.writerow(["long", "count", 2 * score, "mean", 1, 1, 1])
else:
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "count"
    begin = int(file.read_text()) if file.exists() else 0
    if given.start:
        begin += int((given.start / "count").read_text())
    print(f"begins at {begin}", flush=True)
    if given.fail and given.when in (None, given.seed) and not (given.out / "mended").exists():
        raise SystemExit("it does not work")
    for step in range(begin + 1, begin + 1 + max(0, given.steps - begin * (not given.start))):
        (given.out / "count.part").write_text(str(step))
        (given.out / "count.part").rename(file)
        print(f"step {step}/{given.steps} loss={1 / step:.3f}", flush=True)
        if given.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        while step == 3 and gate and not Path(gate).exists():
            time.sleep(0.02)
