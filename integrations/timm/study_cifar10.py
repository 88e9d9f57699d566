"""The study on CIFAR-10: positions trained at one size or several, tested from 24² to 96².

    python integrations/timm/study_cifar10.py train --data cifar10 --out results/cifar10 --jobs 2
    python integrations/timm/study_cifar10.py evaluate --out results/cifar10 --jobs 2
    python integrations/timm/study_cifar10.py report --out results/cifar10

``--data`` holds train/<class>/*.jpg and test/<class>/*.jpg. Training is done by timm's train.py,
found in the folder that TIMM_SCRIPTS names, testing by cape_plugins.evaluation.timm. What has been
done is not done again: start a command anew after an interruption, or with more seeds.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study_report
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from jobs import call, side_by_side, train_missing

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "timm"


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        variant: a key of the study's ``variants``.
        sizes: a key of the study's ``train_img_sizes``.
        seed: train.py's.
        folder: where train.py writes.
    """

    variant: str
    sizes: str
    seed: int
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The state after the last epoch."""
        return self.folder / "last.pth.tar"

    @property
    def record(self) -> Path:
        """Written when the training has ended well."""
        return self.folder / "trained.json"

    def scores(self, variant: str) -> Path:
        """What the evaluation wrote; another variant than the run's is its way of testing."""
        return self.folder / f"tested-{variant}.csv"


def main() -> None:
    """Run one step of the study."""
    arguments = parse()
    study = load_study(arguments.config)
    runs = [
        Run(variant, sizes, seed, arguments.out / "runs" / f"{sizes}-{variant}-seed{seed}")
        for seed in arguments.seeds or study["seeds"]
        for sizes in chosen("--sizes", arguments.sizes, study["train_img_sizes"])
        for variant in chosen("--variants", arguments.variants, study["variants"])
    ]
    if arguments.command == "train":
        scripts = find_scripts()
        for split in ("train", "test"):
            per_class = study[f"{split}_images_per_class"]
            link_images(arguments.data / split, arguments.out / "data" / split, per_class)
        if arguments.epochs is not None:
            study["epochs"] = arguments.epochs
        train_missing(
            runs,
            lambda run: train_command(run, study, scripts, arguments.out),
            arguments.out / "logs",
            arguments.jobs,
        )
    elif arguments.command == "evaluate":
        evaluate(runs, study, arguments.out, arguments.jobs)
    else:
        scores = [
            study_report.Scores(variant, run.sizes, run.seed, run.scores(variant))
            for run in runs
            for variant in ways_of_testing(run, study)
            if run.scores(variant).exists()
        ]
        study_report.report(scores, study["train_img_sizes"], arguments.out)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, required=True, help="folder for everything written")
    common.add_argument("--config", type=Path, default=CONFIGS / "cifar10_study.yaml")
    common.add_argument("--variants", nargs="+", help="default: all of the study's")
    common.add_argument("--sizes", nargs="+", help="fixed, mixed (default: both)")
    common.add_argument("--seeds", nargs="+", type=int, help="default: the study's")
    parallel = argparse.ArgumentParser(add_help=False)
    parallel.add_argument("--jobs", type=int, default=1, help="at a time, one core each")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", parents=[common, parallel], help="what is missing")
    training.add_argument("--data", type=Path, required=True, help="CIFAR-10: train/, test/")
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


def chosen(option: str, names: list[str] | None, known: dict[str, Any]) -> list[str]:
    """The names given on the command line, or all."""
    for name in names or []:
        if name not in known:
            raise SystemExit(f"{option} takes {', '.join(known)}, got {name}")
    return names or list(known)


def load_study(path: Path) -> dict[str, Any]:
    """Read the study's YAML; ``recipe`` becomes a path."""
    study = yaml.safe_load(path.read_text())
    return {**study, "recipe": path.parent / study["recipe"]}


def find_scripts() -> Path:
    """The folder of timm's train.py."""
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts or not (Path(scripts) / "train.py").is_file():
        raise SystemExit(
            f"TIMM_SCRIPTS must name a folder with timm's train.py, got {scripts!r}; "
            "integrations/timm/README.md says how to get it"
        )
    return Path(scripts).resolve()


def link_images(source: Path, out: Path, per_class: int) -> None:
    """Link the first images of each of CIFAR-10's classes, by name, as <class>/<image>.jpg."""
    classes = sorted(path for path in source.glob("*") if path.is_dir())
    if len(classes) != 10:
        raise SystemExit(f"{source} must hold CIFAR-10's ten class folders, found {len(classes)}")
    for folder in classes:
        images = sorted(folder.glob("*.jpg"))[:per_class]
        if len(images) < per_class:
            raise SystemExit(f"{folder} holds {len(images)} images, {per_class} are needed")
        (out / folder.name).mkdir(parents=True, exist_ok=True)
        for image in images:
            link = out / folder.name / image.name
            if not link.is_symlink():
                link.symlink_to(image.resolve())


def train_command(run: Run, study: dict[str, Any], scripts: Path, out: Path) -> list[str]:
    """timm's train.py with the recipe, and what differs between configurations."""
    variant = study["variants"][run.variant]
    model_kwargs = {**study["model_kwargs"], **variant.get("model_kwargs", {})}
    sizes = [str(size) for size in study["train_img_sizes"][run.sizes]]
    return [
        *(sys.executable, str(scripts / "train.py"), "--config", str(study["recipe"])),
        *("--data-dir", str(out / "data"), "--device-modules", "cape_plugins.timm"),
        *("--model", variant["model"]),
        *("--model-kwargs", *(f"{name}={value}" for name, value in model_kwargs.items())),
        *(("--train-img-sizes", *sizes) if len(sizes) > 1 else ("--img-size", *sizes)),
        *(("--epochs", str(study["epochs"])) if "epochs" in study else ()),
        *("--seed", str(run.seed)),
        *("--output", str(run.folder.parent), "--experiment", run.folder.name),
    ]


def ways_of_testing(run: Run, study: dict[str, Any]) -> dict[str, list[str]]:
    """Name of each way in which a run is tested → more arguments for the evaluation."""
    others = {
        name: other["options"]
        for name, other in study.get("also_tested", {}).items()
        if other["variant"] == run.variant and other["sizes"] == run.sizes
    }
    return {run.variant: [], **others}


def evaluate(runs: list[Run], study: dict[str, Any], out: Path, jobs: int) -> None:
    """Test at every size what has been trained and not been tested."""
    missing = [
        (run, variant, options)
        for run in runs
        if run.record.exists()
        for variant, options in ways_of_testing(run, study).items()
        if not run.scores(variant).exists()
    ]

    def test_one(job: tuple[Run, str, list[str]]) -> str | None:
        run, variant, options = job
        part = run.scores(variant).with_suffix(".part.csv")  # a half written file does not count
        command = [
            *(sys.executable, "-m", "cape_plugins.evaluation.timm"),
            *("--checkpoint", str(run.checkpoint), *options),
            *("--data", str(out / "data"), "--split", "test"),
            *("--resolutions", *map(str, study["test_img_sizes"])),
            *("--device", "cpu", "--workers", "0", "--batch-size", "50"),
            *("--csv", str(part), "--overwrite"),
        ]
        if call(command, out / "logs" / f"{run.folder.name}-tested-{variant}.log") is None:
            return f"{run.folder.name} tested as {variant}"
        part.rename(run.scores(variant))
        return None

    side_by_side(test_one, missing, jobs)


if __name__ == "__main__":
    main()
