"""Show what ADMIN is for: 18 + 18 post-norm layers of width 64, with it and without, on Multi30k.

    python integrations/fairseq/admin_depth.py --data prepared --out results/admin --jobs 2

``--data`` is what prepare_multi30k.py made. Both trainings are fairseq-train's, with the same
options but ``--admin-init``; the table shows the training loss, mean of the last 25 updates. What
has been trained is not trained again.
"""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from jobs import train_missing

WIDTH = ("embed-dim", "64"), ("ffn-embed-dim", "256"), ("attention-heads", "4")
NATS_PER_BIT = math.log(2)
NAMES = {"post-norm": [], "post-norm, --admin-init": ["--admin-init"]}


@dataclass(frozen=True)
class Run:
    """One training: what it is called, its own options, where it writes."""

    name: str
    options: list[str]
    folder: Path

    @property
    def record(self) -> Path:
        """Written when the training has ended well."""
        return self.folder / "trained.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Train both, print the table."""
    arguments = parse(argv)
    data = arguments.data.resolve() / "data-bin"
    if not (data / "dict.de.txt").is_file():
        raise SystemExit(f"{arguments.data} holds no data-bin: make it with prepare_multi30k.py")
    out = arguments.out.resolve()
    runs = [
        Run(name, options, out / "runs" / ("admin" if options else "plain"))
        for name, options in NAMES.items()
    ]
    train_missing(runs, lambda run: command(run, data, arguments), out / "logs", arguments.jobs)
    plain, admin = (read(out / "logs" / f"{run.folder.name}.log") for run in runs)
    rows = [[n, plain[n], admin[n]] for n in plain if n % arguments.every == 0]
    text = tabulate(rows, ["updates", *NAMES], tablefmt="github", floatfmt=".2f")
    (out / "results.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def command(run: Run, data: Path, arguments: argparse.Namespace) -> list[str]:
    """The call of fairseq-train: the recipe of 18 layers, narrower, with a quick warm-up."""
    sides = ("encoder", "decoder")
    sizes = [(f"--{side}-{name}", value) for side in sides for name, value in WIDTH]
    sizes += [(f"--{side}-layers", str(arguments.layers)) for side in sides]
    return [
        *(str(Path(sys.executable).parent / "fairseq-train"), str(data), "--cpu"),
        *("--arch", "cape_transformer_wmt_en_de_18l", "--pos", "cape", "--share-all-embeddings"),
        *(word for size in sizes for word in size),
        *("--optimizer", "radam", "--adam-betas", "(0.9, 0.98)", "--lr", str(arguments.lr)),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", str(arguments.warmup_updates)),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--max-tokens", str(arguments.max_tokens), "--max-update", str(arguments.updates)),
        *("--seed", "1", "--disable-validation", "--no-save", "--save-dir", str(run.folder)),
        *("--log-format", "simple", "--log-interval", "25"),
        *run.options,
    ]


def read(log: Path) -> dict[int, float]:
    """Updates → loss per token, nats, without label smoothing."""
    lines = re.finditer(
        r"train_inner.* nll_loss=([\d.e+]+|nan),.* num_updates=(\d+)", log.read_text()
    )
    return {int(line[2]): float(line[1]) * NATS_PER_BIT for line in lines}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="from prepare_multi30k.py")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything written")
    parser.add_argument("--layers", type=int, default=18, help="of encoder and of decoder")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--warmup-updates", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=600, help="of a batch")
    parser.add_argument("--updates", type=int, default=700)
    parser.add_argument("--every", type=int, default=100, help="updates from row to row")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, one core each")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
