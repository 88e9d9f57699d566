"""Coloured squares as PNGs, and what timm's own CheckpointSaver leaves of two small models."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """Six images of 24 × 24 pixels for each of ten classes."""
    root, random = tmp_path_factory.mktemp("noise") / "validation", np.random.default_rng(0)
    for i in range(60):
        folder = root / str(i % 10)
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
        image.resize((24, 24), Image.Resampling.NEAREST).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Callable[[str], Path]:
    """Name of a model → its checkpoint, as train.py saves it."""
    timm = pytest.importorskip("timm")
    import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

    def save(name: str) -> Path:
        kwargs = dict(depth=1, embed_dim=32, num_heads=2, img_size=16, patch_size=4)
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=10, **kwargs)
        for parameter in model.parameters():
            if parameter.ndim > 1:  # large enough for answers that differ
                torch.nn.init.normal_(parameter, std=0.3)
        args = argparse.Namespace(model=name, model_kwargs=kwargs, num_classes=10, img_size=16)
        args.mean, args.std, args.gp = (0.5,) * 3, (0.5,) * 3, None
        folder = tmp_path_factory.mktemp(name)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        saver = timm.utils.CheckpointSaver(model, sgd, args, checkpoint_dir=str(folder))
        saver.save_checkpoint(0, metric=1.0)
        return folder / "last.pth.tar"

    return save


@pytest.fixture(scope="session")
def cape(saved) -> Path:
    return saved("vit_tiny_patch4_cape_32")


@pytest.fixture(scope="session")
def abspos(saved) -> Path:
    return saved("vit_tiny_patch16_224")
