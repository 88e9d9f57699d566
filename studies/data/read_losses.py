"""The training losses in a log of fairseq as a CSV: an evaluation of a study.

    python studies/data/read_losses.py --log train.log --csv losses.csv

The log is that of ``fairseq-train --log-format simple``. Each number is a mean over the last
--log-interval updates. The condition is the number of updates done. The metric is nll_loss in bits
per token. After a resumption some updates are in the log twice: the later line counts.
"""

import argparse
import csv
import re
from pathlib import Path


def main() -> None:
    """Read the log; end with status 2 if it has no losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--device", help="not used; cape-run gives it to every script")
    given = parser.parse_args()
    line = re.compile(r"train_inner .*\bnll_loss=([\d.einfa+-]+).*\bnum_updates=(\d+)")
    log = given.log.read_text(encoding="utf-8", errors="replace")  # it may end in half a letter
    losses = {int(step): loss for loss, step in line.findall(log)}
    if not losses:
        parser.error(f"{given.log} has no line of train_inner with nll_loss and num_updates")
    with given.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["condition", "metric", "value", "items"])
        writer.writerows([step, "nll_loss", losses[step], ""] for step in sorted(losses))


if __name__ == "__main__":
    main()
