"""How long cape-run takes to see whether data changed that it has read before: ImageNet's names.

python benchmarks/names.py
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from cape_studies.contents import SETTLED_NS, digest

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--classes", type=int, default=1000)
parser.add_argument("--images", type=int, default=1200, help="empty files of a class")
parser.add_argument("--rounds", type=int, default=5)
given = parser.parse_args()

with tempfile.TemporaryDirectory() as scratch:
    for one in range(given.classes):
        folder = Path(scratch, "train", f"n{one:08}")
        folder.mkdir(parents=True)
        for image in range(given.images):
            os.close(os.open(folder / f"n{one:08}_{image}.JPEG", os.O_CREAT))
    digest(Path(scratch), Path(scratch, ".kept"))
    time.sleep(SETTLED_NS / 1e9)
    digest(Path(scratch), Path(scratch, ".kept"))
    for _ in range(given.rounds):
        began, core = time.perf_counter(), time.process_time()
        digest(Path(scratch), Path(scratch, ".kept"))
        seconds, core = time.perf_counter() - began, time.process_time() - core
        many = f"{given.classes * given.images:,} names"
        print(f"{many} in {seconds:.1f} s, {core:.1f} s of a core", flush=True)
