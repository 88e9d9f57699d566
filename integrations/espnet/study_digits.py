"""The study on spoken digits: trained on 3 to 6 of them, tested on up to 40.

    python integrations/espnet/study_digits.py train --recordings fsdd/recordings \
        --out results/digits --jobs 2
    python integrations/espnet/study_digits.py evaluate --out results/digits --jobs 2
    python integrations/espnet/study_digits.py report --out results/digits

``--recordings`` holds the WAV files of the Free Spoken Digit Dataset; make_digits.py joins them.
Training is done by espnet2.bin.asr_train, testing by cape_plugins.evaluation.espnet. What has been
done is not done again, and a training that was interrupted goes on after its last epoch: start a
command anew after an interruption, or with more seeds.
"""

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import digits_report
import make_digits
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from jobs import call, side_by_side, train_missing

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "espnet"
CHECKPOINT = "valid.cer_ctc.best.pth"


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        variant: a key of the study's ``variants``.
        seed: asr_train's.
        folder: where asr_train writes.
    """

    variant: str
    seed: int
    folder: Path

    @property
    def record(self) -> Path:
        """Written when the training has ended well."""
        return self.folder / "trained.json"

    @property
    def scores(self) -> Path:
        """What the evaluation wrote."""
        return self.folder / "tested.csv"


def main() -> None:
    """Run one step of the study."""
    arguments = parse()
    study = load_study(arguments.config)
    out = arguments.out.resolve()  # wav.scp and config.yaml name files wherever they are read
    runs = [
        Run(variant, seed, out / "runs" / f"{variant}-seed{seed}")
        for seed in arguments.seeds or study["seeds"]
        for variant in chosen(arguments.variants, study["variants"])
    ]
    if arguments.command == "train":
        try:
            make_digits.make(arguments.recordings, out, make_digits.Sizes(**study["data"]))
        except ValueError as error:
            raise SystemExit(f"error: {error}") from None
        collect_stats(study, out)
        train_missing(
            runs,
            lambda run: train_command(run, study, out, arguments.epochs),
            out / "logs",
            arguments.jobs,
        )
    elif arguments.command == "evaluate":
        evaluate(runs, study, out, arguments.jobs)
    else:
        scores = [
            digits_report.Scores(run.variant, run.seed, run.scores, run.record)
            for run in runs
            if run.scores.exists()
        ]
        digits_report.report(scores, test_sets(study), out)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, required=True, help="folder for everything written")
    common.add_argument("--config", type=Path, default=CONFIGS / "digits_study.yaml")
    common.add_argument("--variants", nargs="+", help="default: all of the study's")
    common.add_argument("--seeds", nargs="+", type=int, help="default: the study's")
    parallel = argparse.ArgumentParser(add_help=False)
    parallel.add_argument("--jobs", type=int, default=1, help="at a time, one core each")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", parents=[common, parallel], help="what is missing")
    training.add_argument("--recordings", type=Path, required=True, help="FSDD's recordings")
    training.add_argument("--epochs", type=int, help="instead of the recipe's; take another --out")
    commands.add_parser("evaluate", parents=[common, parallel], help="what has been trained")
    commands.add_parser("report", parents=[common], help="table, figure and CSV of what there is")
    arguments = parser.parse_args()
    if arguments.command != "report" and arguments.jobs < 1:
        parser.error(f"--jobs must be ≥ 1, got {arguments.jobs}")
    if arguments.command == "train" and arguments.epochs is not None and arguments.epochs < 1:
        parser.error(f"--epochs must be ≥ 1, got {arguments.epochs}")
    if not arguments.config.is_file():
        parser.error(f"--config: no such file: {arguments.config}")
    return arguments


def chosen(names: list[str] | None, known: dict[str, Any]) -> list[str]:
    """The variants given on the command line, or all."""
    for name in names or []:
        if name not in known:
            raise SystemExit(f"--variants takes {', '.join(known)}, got {name}")
    return names or list(known)


def load_study(path: Path) -> dict[str, Any]:
    """Read the study's YAML; ``recipe`` becomes a path."""
    study = yaml.safe_load(path.read_text())
    return {**study, "recipe": path.parent / study["recipe"]}


def test_sets(study: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Name → fewest and most digits of an utterance."""
    return {
        make_digits.test_name(fewest, most): (fewest, most)
        for fewest, most, _ in study["data"]["tests"]
    }


def data_flags(study: dict[str, Any], out: Path) -> list[str]:
    """What all of asr_train's commands have."""
    flags = ["--config", str(study["recipe"]), "--ngpu", "0"]
    flags += ["--token_list", str(out / "data" / "tokens.txt")]
    for name in ("train", "valid"):
        for file, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            path = out / "data" / name / file
            flags += [f"--{name}_data_path_and_name_and_type", f"{path},{kind}"]
    return flags


def collect_stats(study: dict[str, Any], out: Path) -> None:
    """Write the shape files, which serve all variants."""
    done = out / "stats" / "done"
    if done.exists():
        return
    command = [
        *(sys.executable, "-m", "espnet2.bin.asr_train", *data_flags(study, out)),
        *("--collect_stats", "true", "--batch_type", "unsorted", "--batch_size", "50"),
        *("--output_dir", str(done.parent)),
    ]
    if call(command, out / "logs" / "stats.log") is None:
        raise SystemExit("collect-stats failed")
    done.touch()


def train_command(run: Run, study: dict[str, Any], out: Path, epochs: int | None) -> list[str]:
    """asr_train with the recipe, and what differs between runs."""
    shapes = []
    for name in ("train", "valid"):
        for kind in ("speech_shape", "text_shape"):
            shapes += [f"--{name}_shape_file", str(out / "stats" / name / kind)]
    shorter = []
    if epochs is not None:
        recipe = yaml.safe_load(study["recipe"].read_text())
        updates = epochs * recipe["num_iters_per_epoch"]
        shorter = ["--max_epoch", str(epochs), "--scheduler_conf", f"total_steps={updates}"]
    return [
        *(sys.executable, "-m", "espnet2.bin.asr_train", *data_flags(study, out), *shapes),
        *shlex.split(study["variants"][run.variant]),
        *("--seed", str(run.seed), *shorter),
        *("--resume", "true", "--output_dir", str(run.folder)),
    ]


def evaluate(runs: list[Run], study: dict[str, Any], out: Path, jobs: int) -> None:
    """Test on every set what has been trained and not been tested."""
    missing = [run for run in runs if run.record.exists() and not run.scores.exists()]

    def test_one(run: Run) -> str | None:
        part = run.folder / "part"  # a half written file does not count
        command = [
            *(sys.executable, "-m", "cape_plugins.evaluation.espnet"),
            *("--model", f"{run.folder.name}={run.folder / CHECKPOINT}"),
            *("--data", *(f"{name}={out / 'data' / name}" for name in test_sets(study))),
            *("--bins", "2", "4", "8", "16"),
            *("--device", "cpu", "--no-plots", "--out", str(part), "--overwrite"),
        ]
        if call(command, out / "logs" / f"{run.folder.name}-tested.log") is None:
            return run.folder.name
        part.with_suffix(".csv").rename(run.scores)
        return None

    side_by_side(test_one, missing, jobs)


if __name__ == "__main__":
    main()
