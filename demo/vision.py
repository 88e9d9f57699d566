"""Vision: scikit-learn's digits, a ViT by name, trained at one size and tested at several.

    python demo/vision.py --out out/demo [--quick]

timm gives the model, the data pipeline and the training task; Lightning's Trainer drives them
(timm's own train.py is not in its wheel). The variants train side by side, one process each.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import lightning
import timm
import torch
from common import Report, Run, run_side_by_side
from lightning.pytorch.callbacks import Callback
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.task import ClassificationTask
from torch.utils.data import DataLoader

VARIANTS = ("sinpos", "cape")
TRAIN_SIZE = 16  # pixels; the digits are 8 × 8, so one 2 × 2 patch covers one of their pixels
TEST_SIZES = (8, 10, 12, 14, 16, 20, 24, 32, 48)
MODEL = dict(patch_size=2, embed_dim=64, depth=4, num_heads=4, num_classes=10)
TEST_IMAGES = 450  # of 1797; the others are for training
STEPS = 2600
BATCH = 32
LEARNING_RATE = 2e-3
SEED = 0


def main() -> None:
    """Prepare the images, train the variants side by side, report."""
    arguments = parse()
    if arguments.train:
        train_one(arguments.train, arguments.out, arguments.steps)
        return
    work = arguments.out / "work" / "timm"
    steps = 20 if arguments.quick else STEPS
    print(f"[timm] writing the digits as PNG files to {work / 'digits'}", flush=True)
    write_images(work / "digits")
    print(f"[timm] training {' and '.join(VARIANTS)}, {steps} steps each", flush=True)
    jobs = {
        variant: [
            *(sys.executable, str(Path(__file__)), "--out", str(work)),
            *("--train", variant, "--steps", str(steps)),
        ]
        for variant in VARIANTS
    }
    run_side_by_side(jobs, work / "logs", show=["step ", "tested at"])
    report = Report(
        host="timm",
        task=f"handwritten digits, ViT trained at {TRAIN_SIZE} × {TRAIN_SIZE}",
        condition="image side (pixels)",
        metric="top-1 accuracy (%)",
        higher_is_better=True,
        trained_on=[str(TRAIN_SIZE)],
        settings={
            "model": "vit_tiny_patch16_<variant>_224",
            "img_size": TRAIN_SIZE,
            **MODEL,
            "optimizer": "adamw",
            "lr": LEARNING_RATE,
            "batch": BATCH,
            "steps": steps,
            "test_images": TEST_IMAGES,
        },
    )
    for variant in VARIANTS:
        result = json.loads((work / f"{variant}.json").read_text())
        report.runs.append(Run(variant, SEED, result["scores"], result["seconds"]))
    report.save(arguments.out)
    print(report.table(), flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for results and work")
    parser.add_argument("--quick", action="store_true", help="a few steps, to try the machinery")
    parser.add_argument("--train", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_images(folder: Path) -> None:
    """Write scikit-learn's digits as timm's ImageFolder: {train,test}/<digit>/<index>.png."""
    digits = load_digits()
    train, test = train_test_split(
        range(len(digits.target)), test_size=TEST_IMAGES, random_state=0, stratify=digits.target
    )
    for split, indices in (("train", train), ("test", test)):
        for index in indices:
            path = folder / split / str(digits.target[index]) / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = (digits.images[index] * (255 / 16)).round().astype("uint8")
            Image.fromarray(pixels).save(path)


def loader(folder: Path, split: str, size: int) -> DataLoader:
    """timm's data pipeline at one image size: bicubic resize, no augmentation of the image."""
    dataset = create_dataset("", root=str(folder), split=split)
    return create_loader(
        dataset,
        input_size=(3, size, size),
        batch_size=BATCH if split == "train" else TEST_IMAGES,
        is_training=split == "train",
        no_aug=True,
        interpolation="bicubic",
        crop_pct=1.0,
        use_prefetcher=False,
        num_workers=0,
        device=torch.device("cpu"),
        persistent_workers=False,
    )


class DigitsModule(lightning.LightningModule):
    """timm's ClassificationTask as a Lightning module."""

    def __init__(self, variant: str, steps: int) -> None:
        super().__init__()
        model = timm.create_model(f"vit_tiny_patch16_{variant}_224", img_size=TRAIN_SIZE, **MODEL)
        self.task = ClassificationTask(model, criterion_kwargs=dict(smoothing=0.1), verbose=False)
        self.steps = steps

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """One step of timm's task."""
        return self.task(*batch)["loss"]

    def configure_optimizers(self) -> dict[str, object]:
        """timm's AdamW and cosine schedule with warm-up, by step."""
        optimizer = create_optimizer_v2(
            self.task.trainable_module, "adamw", lr=LEARNING_RATE, weight_decay=0.05
        )
        scheduler = CosineLRScheduler(
            optimizer, self.steps, warmup_t=self.steps // 10, warmup_lr_init=1e-6, t_in_epochs=False
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def lr_scheduler_step(self, scheduler: CosineLRScheduler, _: object) -> None:
        """timm's schedulers are told the step."""
        scheduler.step_update(self.global_step)


class Progress(Callback):
    """Prints a line every so often, for the process that watches the variants side by side."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:  # type: ignore
        """Print step, loss and time."""
        step = trainer.global_step
        if step % max(1, trainer.max_steps // 10) == 0:
            print(f"step {step}/{trainer.max_steps} loss {outputs['loss']:.3f}", flush=True)


def train_one(variant: str, work: Path, steps: int) -> None:
    """Train one variant and test it at all sizes; writes ``work/<variant>.json``."""
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    lightning.seed_everything(SEED)
    module = DigitsModule(variant, steps)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Progress()],
    )
    start = time.monotonic()
    trainer.fit(module, loader(work / "digits", "train", TRAIN_SIZE))
    seconds = time.monotonic() - start
    module.eval()
    scores = {}
    for size in TEST_SIZES:
        images, targets = next(iter(loader(work / "digits", "test", size)))
        with torch.inference_mode():
            correct = module.task.trainable_module(images).argmax(1) == targets
        scores[str(size)] = 100 * correct.float().mean().item()
        print(f"tested at {size} × {size}: {scores[str(size)]:.1f} %", flush=True)
    result = {"scores": scores, "seconds": seconds}
    (work / f"{variant}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
