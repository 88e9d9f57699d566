"""The training losses in a log of fairseq as a CSV: an evaluation of a study.

    python studies/data/read_losses.py --log train.log --csv losses.csv

The log is that of ``fairseq-train --log-format simple``. Each number is a mean over the last
--log-interval updates. The condition is the number of updates done. The metric is nll_loss in bits
per token. After a resumption some updates are in the log twice: the later line counts.
"""

import re
from pathlib import Path

import pandas as pd

from cape_studies.command import script


def main(log: Path, csv: Path, device: str = "cpu") -> None:
    """Read the log.

    Args:
        log: of fairseq-train.
        csv: file to write.
        device: not used; cape-run gives it to every script.

    Raises:
        ValueError: the log has no losses.
    """
    line = re.compile(r"train_inner .*\bnll_loss=([\d.einfa+-]+).*\bnum_updates=(\d+)")
    text = log.read_text(encoding="utf-8", errors="replace")  # it may end in half a letter
    losses = {int(step): loss for loss, step in line.findall(text)}
    if not losses:
        raise ValueError(f"{log} has no line of train_inner with nll_loss and num_updates")
    rows = [[step, "nll_loss", losses[step], ""] for step in sorted(losses)]
    pd.DataFrame(rows, columns=["condition", "metric", "value", "items"]).to_csv(csv, index=False)


if __name__ == "__main__":
    script(main)
