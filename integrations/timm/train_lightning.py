"""Train a small model of timm with Lightning: timm's own train.py is not in its wheel.

    python integrations/timm/train_lightning.py --data-dir images --out run --steps 2000 \
        --model vit_tiny_patch16_cape_low_224 --model-kwargs patch_size=2 depth=4 --img-size 16

timm gives the model, the data pipeline and the training task. Lightning's Trainer runs them, and
resumes from its checkpoint in ``--out``. Writes model.pth in the layout of train.py's checkpoints.
Needs cape-studies, whose ``cape_studies.data.images`` reads the files.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import lightning
import timm
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, ImageDataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.task import ClassificationTask
from timm.utils import ParseKwargs
from torch.utils.data import DataLoader

from cape_studies.data.images import leave_out_hidden, moved, opened

EMA = 0.99  # decay of the average of the weights


def main() -> None:
    """Train, or resume."""
    given = parse()
    lightning.seed_everything(given.seed)
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    trainer = lightning.Trainer(
        max_steps=given.steps,
        accelerator="cpu" if given.device == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[
            EMAWeightAveraging(decay=EMA),  # what is left in the model at the end
            ModelCheckpoint(out, "last", every_n_train_steps=100, enable_version_counter=False),
        ],
    )
    last = out / "last.ckpt"
    begun = torch.load(last) if last.exists() else {}
    try:
        loader, classes = images(given)
        module = Classifier(given, classes)
        if begun.get("global_step") == given.steps:  # fit would leave the last weights
            module.load_state_dict(begun["state_dict"])  # the averaged ones
        else:
            trainer.fit(module, loader, ckpt_path=last if begun else None)
    except SIGTERMException:  # Lightning's own status would be 0
        sys.exit("ended by SIGTERM")
    except ValueError as error:  # of a process that loads data it is the last line
        sys.exit(f"error: {str(error).strip().splitlines()[-1]}")
    about = vars(given) | dict(crop_pct=1.0, interpolation="bicubic")
    about |= dict(mean=IMAGENET_DEFAULT_MEAN, std=IMAGENET_DEFAULT_STD)  # those of create_loader
    about |= dict(model_kwargs=module.model_kwargs)
    weights = module.task.trainable_module.state_dict()
    torch.save(dict(arch=given.model, args=about, state_dict=weights), out / "model.pth")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data-dir", required=True, help="with train/<class>/")
    add("--train-split", default="train", help="its folder in --data-dir (default: %(default)s)")
    add("--out", required=True, help="folder of the checkpoint")
    add("--model", required=True, help="timm's name")
    add("--model-kwargs", nargs="*", default={}, action=ParseKwargs, help="NAME=VALUE")
    add("--pretrained", action="store_true", help="start from timm's weights of the model")
    add("--pretrained-path", help="start from weights in this file")
    add("--img-size", type=int, required=True, help="pixels")
    add("--steps", type=int, required=True)
    add("--batch-size", type=int, default=32)
    add("--lr", type=float, default=2e-3)
    add("--no-aug", action="store_true", help="no augmentation of the images")
    add("--scale", type=float, nargs=2, default=(0.08, 1.0), help="area of random crops (timm's)")
    add("--hflip", type=float, default=0.5, help="probability of a flip (timm's)")
    add("--moved", type=float, default=0.0, help="move images by up to this part of their side")
    add("--workers", type=int, default=0, help="processes that load images")
    add("--smoothing", type=float, default=0.1, help="of labels")
    add("--seed", type=int, default=0)
    add("--device", default="cpu")
    return parser.parse_args()


def images(given: argparse.Namespace) -> tuple[DataLoader, int]:
    """timm's data pipeline at one image size, with its usual augmentation or a resize alone; and
    the number of timm's classes.

    Raises:
        ValueError: there is no such split, or no images in it, or fewer than a batch.
    """
    root = Path(given.data_dir, given.train_split)
    if not root.is_dir():
        raise ValueError(f"no folder {root}")
    try:
        data = Images(str(root), given.moved)
    except RuntimeError as error:  # timm's, without images
        raise ValueError(error) from error
    if len(data) < given.batch_size:
        raise ValueError(
            f"{root} has {len(data)} images, fewer than a batch of {given.batch_size}: give a "
            "smaller --batch-size"
        )
    loader = create_loader(
        data,
        input_size=(3, given.img_size, given.img_size),
        batch_size=given.batch_size,
        is_training=True,
        no_aug=given.no_aug,
        scale=given.scale,
        hflip=given.hflip,
        interpolation="bicubic",
        use_prefetcher=False,
        num_workers=given.workers,
        persistent_workers=given.workers > 0,
        device=torch.device(given.device),
    )
    return loader, len(data.reader.class_to_idx)


class Images(ImageDataset):
    """timm's dataset of a folder, without hidden files. An image that cannot be used is an error;
    timm would put the next in its place. Each is turned as its EXIF says, and moved by up to ``by``
    of its side."""

    def __init__(self, root: str, by: float) -> None:
        super().__init__(root)
        leave_out_hidden(self.reader)
        self.by = by

    def __getitem__(self, index: int) -> Any:
        """An image, (3, H, W), and its class.

        Raises:
            ValueError: it cannot be used.
        """
        file, target = self.reader[index]
        with file:
            image = opened(file, file.name, upright=True)
        if self.by:
            image = moved(image, *(random.uniform(-self.by, self.by) for _ in range(2)))
        return self.transform(image), target


class Classifier(lightning.LightningModule):
    """timm's ClassificationTask as a Lightning module."""

    def __init__(self, given: argparse.Namespace, classes: int) -> None:
        super().__init__()
        self.model_kwargs = dict(num_classes=classes, img_size=given.img_size) | given.model_kwargs
        start: dict[str, Any] = {"pretrained": given.pretrained}
        if given.pretrained_path:  # timm makes a new head, as train.py
            start["pretrained_cfg_overlay"] = {"file": given.pretrained_path}
        model = timm.create_model(given.model, **start, **self.model_kwargs)
        smoothing = dict(smoothing=given.smoothing)
        self.task = ClassificationTask(model, criterion_kwargs=smoothing, verbose=False)
        self.steps = given.steps
        self.lr = given.lr

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """One step of timm's task; 50 of a training print a line."""
        loss = self.task(*batch)["loss"]
        step = self.global_step + 1
        if step % max(1, self.steps // 50) == 0:
            print(f"step {step}/{self.steps} loss={loss:.3f}", flush=True)
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        """timm's AdamW and cosine schedule with warm-up, by step."""
        optimizer = create_optimizer_v2(
            self.task.trainable_module, "adamw", lr=self.lr, weight_decay=0.05
        )
        scheduler = CosineLRScheduler(
            optimizer, self.steps, warmup_t=self.steps // 10, warmup_lr_init=1e-6, t_in_epochs=False
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def lr_scheduler_step(self, scheduler: CosineLRScheduler, _: object) -> None:
        """Tell timm's scheduler the step."""
        scheduler.step_update(self.global_step)


if __name__ == "__main__":
    main()
