"""The study on Multi30k en-de: five variants of positions, tested on captions and stacks of them.

    python integrations/fairseq/study_multi30k.py train --data prepared --out results/m30k --jobs 2
    python integrations/fairseq/study_multi30k.py evaluate --data prepared --out results/m30k
    python integrations/fairseq/study_multi30k.py report --data prepared --out results/m30k

``--data`` is what prepare_multi30k.py made. Training is done by fairseq-hydra-train, testing by
cape_plugins.evaluation.fairseq. What has been done is not done again: start a command anew after an
interruption, or with more seeds.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from jobs import call, side_by_side, train_missing

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "fairseq"


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        variant: ``--pos``.
        seed: fairseq's.
        folder: of its checkpoints and records.
    """

    variant: str
    seed: int
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The state with the best validation loss."""
        return self.folder / "checkpoint_best.pt"

    @property
    def record(self) -> Path:
        """Written when the training has ended well."""
        return self.folder / "trained.json"


@dataclass(frozen=True)
class Test:
    """One way of testing a run.

    Attributes:
        name: of the files.
        command: of cape_plugins.evaluation.fairseq.
        stacked: on stacked captions.
        options: more arguments.
    """

    name: str
    command: str
    stacked: bool
    options: tuple[str, ...] = ()

    def rows(self, run: Run) -> Path:
        """The CSV that the evaluation wrote."""
        return run.folder / f"{self.name}.csv"


def main() -> None:
    """Run one step of the study."""
    arguments = parse()
    study = yaml.safe_load(arguments.config.read_text())
    for variant in arguments.variants or []:
        if variant not in study["variants"]:
            raise SystemExit(f"--variants takes {', '.join(study['variants'])}, got {variant}")
    runs = [
        Run(variant, seed, (arguments.out / "runs" / f"{variant}-seed{seed}").resolve())
        for seed in arguments.seeds or study["seeds"]
        for variant in arguments.variants or study["variants"]
    ]
    data, out = arguments.data.resolve(), arguments.out.resolve()
    if not (data / "data-bin" / "dict.de.txt").is_file():
        raise SystemExit(f"{data} holds no data-bin: make it with prepare_multi30k.py")
    if arguments.command == "train":
        train_missing(
            runs,
            lambda run: train_command(run, study, arguments, data),
            out / "logs",
            arguments.jobs,
        )
    elif arguments.command == "evaluate":
        evaluate(runs, study, data, out, arguments.jobs)
    else:
        import multi30k_report  # beside this file; needs matplotlib

        multi30k_report.report(runs, tests(study, data), data, study["position_ranges"], out)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--data", type=Path, required=True, help="from prepare_multi30k.py")
    common.add_argument("--out", type=Path, required=True, help="folder for everything written")
    common.add_argument("--config", type=Path, default=CONFIGS / "multi30k_study.yaml")
    common.add_argument("--variants", nargs="+", help="default: all of the study's")
    common.add_argument("--seeds", nargs="+", type=int, help="default: the study's")
    parallel = argparse.ArgumentParser(add_help=False)
    parallel.add_argument("--jobs", type=int, default=1, help="at a time, one core each")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", parents=[common, parallel], help="what is missing")
    training.add_argument("--updates", type=int, help="not the recipe's; take another --out")
    commands.add_parser("evaluate", parents=[common, parallel], help="what has been trained")
    commands.add_parser("report", parents=[common], help="tables and figure of what there is")
    arguments = parser.parse_args()
    for name in ("jobs", "updates"):
        value = getattr(arguments, name, None)
        if value is not None and value < 1:
            parser.error(f"--{name} must be ≥ 1, got {value}")
    if not arguments.config.is_file():
        parser.error(f"--config: no such file: {arguments.config}")
    return arguments


def train_command(
    run: Run, study: dict[str, Any], arguments: argparse.Namespace, data: Path
) -> list[str]:
    """fairseq-hydra-train with the recipe, and what differs between trainings."""
    updates = arguments.updates
    return [
        str(Path(sys.executable).parent / "fairseq-hydra-train"),
        *("--config-dir", str(arguments.config.resolve().parent), "--config-name", study["recipe"]),
        f"task.data={data / 'data-bin'}",
        f"model.pos={run.variant}",
        f"common.seed={run.seed}",
        f"checkpoint.save_dir={run.folder}",
        f"hydra.run.dir={run.folder}",
        *(
            (f"optimization.max_update={updates}", f"lr_scheduler.total_num_update={updates}")
            if updates
            else ()
        ),
    ]


def stacked_folder(out: Path) -> Path:
    """Binarised stacks of the test set."""
    return out / "stacked"


def tests(study: dict[str, Any], data: Path) -> list[Test]:
    """How each run is tested."""
    search = ("--beam", str(study["beam"]), "--lenpen", str(study["lenpen"]))
    raw = ("--reference", str(data / "raw" / "test.de"))
    longer = ("--max-len-a", "2")  # a stack's translation may be longer than 200 tokens
    return [
        Test("bleu", "bleu", False, (*search, *raw)),
        Test("bleu-stacked", "bleu", True, (*search, *longer)),
        Test("loss", "loss", False),
        Test("loss-stacked", "loss", True),
    ]


def evaluate(runs: list[Run], study: dict[str, Any], data: Path, out: Path, jobs: int) -> None:
    """Stack the test set, then test what has been trained and not been tested."""
    evaluation = [sys.executable, "-m", "cape_plugins.evaluation.fairseq"]
    if not stacked_folder(out).exists():
        texts = [data / "tokenised" / f"test.{language}" for language in ("en", "de")]
        command = [
            *(*evaluation, "stack", "--source", str(texts[0]), "--target", str(texts[1])),
            *("--codes", str(data / "codes"), "--data", str(data / "data-bin")),
            *("--out", str(stacked_folder(out)), "--min-tokens", str(study["stacked_tokens"])),
        ]
        if call(command, out / "logs" / "stack.log") is None:
            raise SystemExit("the test set could not be stacked")
    missing = [
        (run, test)
        for run in runs
        if run.record.exists()
        for test in tests(study, data)
        if not test.rows(run).exists()
    ]

    def test_one(job: tuple[Run, Test]) -> str | None:
        run, test = job
        part = test.rows(run).with_suffix(".part.csv")  # a half written file does not count
        name = f"{run.folder.name}-{test.name}"
        command = [
            *(*evaluation, test.command),
            str(stacked_folder(out) if test.stacked else data / "data-bin"),
            *("--model", f"{run.variant}={run.checkpoint}", *test.options),
            *("--device", "cpu", "--csv", str(part), "--overwrite"),
        ]
        if call(command, out / "logs" / f"{name}.log") is None:
            return name
        part.rename(test.rows(run))
        return None

    side_by_side(test_one, missing, jobs)


if __name__ == "__main__":
    main()
