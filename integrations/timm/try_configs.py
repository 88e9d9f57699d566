"""Run every recipe of configs/timm for a few real steps of timm's train.py, on a CPU.

    TIMM_SCRIPTS=scripts python integrations/timm/try_configs.py --data cifar10 --out results/try

Each recipe keeps its image sizes, augmentation, optimiser, schedule and mixed precision. The model,
the batch and the number of images are smaller, as a CPU needs it. These options are printed first.
``--data`` holds train/<class>/*.jpg.
"""

import argparse
import csv
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from link_images import link

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "timm"
BATCH = 8
CLASSES = 10
OVERRIDES = [
    *("--epochs", "1", "--batch-size", str(BATCH), "--num-classes", str(CLASSES)),
    *("--device", "cpu", "--workers", "0", "--log-interval", "1"),
]


@dataclass(frozen=True)
class Trial:
    """One short training.

    Attributes:
        recipe: a YAML of configs/timm, without its suffix.
        model: timm's name.
        options: more of train.py's arguments.
        start: the trial whose checkpoint it starts from, and train.py's option for that.
    """

    recipe: str
    model: str
    options: tuple[str, ...] = ()
    start: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "-".join([self.recipe, self.model, *self.options]).replace("=", "")


AT_160, AT_384 = (
    ("--img-size", f"{size}", "--model-kwargs", f"img_size={size}", "dynamic_img_size=True")
    for size in (160, 384)
)
TRIALS = [
    Trial("deit", "vit_tiny_patch16_cape_224", AT_160),
    Trial("deit", "deit_tiny_patch16_224", AT_160),
    Trial("deit", "vit_tiny_patch16_nopos_224"),
    Trial("deit", "vit_tiny_patch16_sinpos_224"),
    Trial("deit", "vit_tiny_patch16_cape_224"),
    Trial("deit", "deit_tiny_patch16_224"),
    Trial("deit", "vit_tiny_patch16_cape_224", ("--model-kwargs", "max_global_scale=1.0")),
    Trial("deit", "vit_tiny_patch16_cape_224", ("--model-kwargs", "max_global_shift=0.0")),
    Trial("deit", "vit_tiny_patch16_cape_224", ("--model-kwargs", "max_local_shift=0.0")),
    Trial(
        "deit",
        "vit_tiny_patch16_cape_224",
        ("--model-kwargs", "max_global_scale=1.0", "max_global_shift=0.0"),
    ),
    Trial(
        "deit",
        "vit_tiny_patch16_cape_224",
        ("--model-kwargs", "max_global_scale=1.0", "max_local_shift=0.0"),
    ),
    Trial("deit", "vit_tiny_patch16_cape_224", AT_384),
    Trial("deit", "deit_tiny_patch16_224", AT_384),
    Trial(
        "finetune_384",
        "vit_tiny_patch16_cape_224",
        start=("deit-vit_tiny_patch16_cape_224", "--initial-checkpoint"),
    ),
    Trial(
        "finetune_384",
        "deit_tiny_patch16_224",
        start=("deit-deit_tiny_patch16_224", "--pretrained", "--pretrained-path"),
    ),
    Trial("univit", "vit_tiny_patch16_univit_224"),
    Trial("univit", "vit_tiny_patch16_cape_224"),
    Trial("univit", "vit_tiny_patch16_sinpos_224"),
    Trial("univit", "deit_tiny_patch16_224"),
]


def main() -> None:
    """Run the trials one after another; ends with status 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train/<class>/*.jpg")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--images", type=int, default=56, help="images in training (default: 56)")
    parser.add_argument("--only", nargs="+", help="recipes (default: all)")
    parser.add_argument("--extra", nargs="+", default=[], help="more arguments for train.py")
    arguments = parser.parse_args()
    scripts = Path(os.environ.get("TIMM_SCRIPTS", ""))
    if not (scripts / "train.py").is_file():
        raise SystemExit("TIMM_SCRIPTS must name a folder with timm's train.py: see README.md")
    if arguments.out.exists():
        raise SystemExit(f"{arguments.out} exists: name a new folder")
    per_class = math.ceil(arguments.images / CLASSES)
    link(arguments.data / "train", arguments.out / "data" / "train", 0, per_class)
    link(arguments.data / "train", arguments.out / "data" / "validation", 0, 1)
    overrides = [*OVERRIDES, *arguments.extra]
    print(f"overridden on the command line: {' '.join(overrides)}\n", flush=True)
    failed = [
        trial.name
        for trial in TRIALS
        if not arguments.only or trial.recipe in arguments.only
        if not run(trial, scripts, arguments.out, overrides)
    ]
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))


def run(trial: Trial, scripts: Path, out: Path, overrides: list[str]) -> bool:
    """Run one trial and print one line; True if it trained and every loss is finite."""
    folder = out / trial.name
    start = [*trial.start[1:], str(out / trial.start[0] / "last.pth.tar")] if trial.start else []
    command = [
        *(sys.executable, str(scripts / "train.py"), "-c", str(CONFIGS / f"{trial.recipe}.yaml")),
        *("--data-dir", str(out / "data"), "--device-modules", "cape_plugins.timm"),
        *("--model", trial.model, *trial.options, *start, *overrides),
        *("--output", str(out), "--experiment", trial.name),
    ]
    began = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    log = done.stdout + done.stderr
    (out / f"{trial.name}.log").write_text(" ".join(command) + "\n" + log)
    losses = [float(loss) for loss in re.findall(r"Train: .*?Loss: +(\S+)", log)]
    ok = done.returncode == 0 and bool(losses) and all(map(math.isfinite, losses))
    print(f"{trial.name}: {'ok' if ok else 'FAILED'}, {time.monotonic() - began:.0f} s", end="")
    if ok:
        with (folder / "summary.csv").open() as file:
            row = next(csv.DictReader(file))
        print(
            f", {len(losses)} steps, loss {losses[0]:.2f} … {losses[-1]:.2f}, "
            f"validation loss {float(row['eval_loss']):.2f}"
        )
    else:
        print(f"\n{log[-1500:]}")
    sys.stdout.flush()
    return ok


if __name__ == "__main__":
    main()
