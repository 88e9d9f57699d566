"""Digits as PNGs, and two small models that have learnt them."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

IMAGES = 120


@pytest.fixture(scope="session")
def digits():
    return pytest.importorskip("sklearn.datasets").load_digits()


@pytest.fixture(scope="session")
def data(tmp_path_factory, digits) -> Path:
    """The last digits of the set as images of 24 × 24 pixels in class folders."""
    root = tmp_path_factory.mktemp("digits") / "validation"
    for i in range(IMAGES):
        folder = root / str(digits.target[-1 - i])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (digits.images[-1 - i] * 15).astype("uint8")
        Image.fromarray(pixels).resize((24, 24)).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def trained(tmp_path_factory, digits) -> Callable[[str], Path]:
    """Name of a model → a file of timm's own CheckpointSaver, as train.py calls it."""
    timm = pytest.importorskip("timm")
    import cape_plugins.timm  # noqa: F401 - registers, also where autoload is switched off

    images = torch.tensor(digits.images[:1200], dtype=torch.float32)[:, None] / 8 - 1
    images = F.interpolate(images, size=16).expand(-1, 3, -1, -1)
    targets, made = torch.tensor(digits.target[:1200]), {}

    def train(name: str) -> Path:
        kwargs = dict(depth=1, embed_dim=32, num_heads=2, img_size=16, patch_size=4)
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=10, **kwargs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(200):
            batch = torch.arange(step * 40, step * 40 + 40) % 1200
            F.cross_entropy(model(images[batch]), targets[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
        args = argparse.Namespace(model=name, model_kwargs=kwargs, num_classes=10, img_size=16)
        args.mean, args.std, args.gp = (0.5,) * 3, (0.5,) * 3, None
        folder = tmp_path_factory.mktemp(name)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        saver = timm.utils.CheckpointSaver(model, sgd, args, checkpoint_dir=str(folder))
        saver.save_checkpoint(0, metric=1.0)
        return folder / "last.pth.tar"

    def once(name: str) -> Path:
        made[name] = made.get(name) or train(name)
        return made[name]

    return once


@pytest.fixture(scope="session")
def cape(trained) -> Path:
    return trained("vit_tiny_patch4_cape_32")


@pytest.fixture(scope="session")
def abspos(trained) -> Path:
    return trained("vit_tiny_patch16_224")
