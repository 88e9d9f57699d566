"""`make demo`: CAPE trained and tested in timm, fairseq and ESPnet, by each host's own machinery.

    python demo/run.py --out out/demo [--quick] [timm] [fairseq] [espnet]

Writes <host>.json, <host>.png and all.json into the folder; prints one Markdown table.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from common import Report, markdown

SCRIPTS = {"timm": "vision.py", "fairseq": "translation.py", "espnet": "speech.py"}


def main() -> None:
    """Run the demos one after the other, then print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--quick", action="store_true", help="a few steps, to try the machinery")
    arguments = parser.parse_args()
    hosts = arguments.hosts or list(SCRIPTS)
    if unknown := set(hosts) - set(SCRIPTS):
        parser.error(f"unknown host {', '.join(sorted(unknown))}: choose from {', '.join(SCRIPTS)}")

    start = time.monotonic()
    seconds = {}
    for number, host in enumerate(hosts, 1):
        print(f"\n=== {number}/{len(hosts)} {host}: demo/{SCRIPTS[host]} ===", flush=True)
        began = time.monotonic()
        command = [sys.executable, str(Path(__file__).with_name(SCRIPTS[host]))]
        command += ["--out", str(arguments.out), *(["--quick"] if arguments.quick else [])]
        if code := subprocess.run(command).returncode:
            raise SystemExit(f"the {host} demo failed with exit status {code}")
        seconds[host] = time.monotonic() - began

    results = {host: json.loads((arguments.out / f"{host}.json").read_text()) for host in hosts}
    reports = [Report.load(arguments.out / f"{host}.json") for host in hosts]
    everything = {"seconds": seconds, "hosts": results}
    (arguments.out / "all.json").write_text(json.dumps(everything, indent=2) + "\n")
    print(f"\n=== results ===\n\n{markdown(reports)}")
    minutes = (time.monotonic() - start) / 60
    print(
        f"\n{minutes:.1f} minutes; numbers, seeds and versions: {arguments.out}/all.json; pictures:"
    )
    for host in hosts:
        print(f"  {arguments.out}/{host}.png")


if __name__ == "__main__":
    main()
