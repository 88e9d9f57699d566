"""A trainer for timm's evaluator: it saves a small model as it begins."""

import argparse
from pathlib import Path

import timm
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--seed", type=int)
parser.add_argument("--device")
given = parser.parse_args()
torch.manual_seed(given.seed)
name = "vit_tiny_patch16_224"
kwargs = dict(depth=1, embed_dim=32, num_heads=2, img_size=16, patch_size=4)
model = timm.create_model(name, num_classes=2, **kwargs)
args = argparse.Namespace(model=name, model_kwargs=kwargs, num_classes=2, img_size=16)
args.mean, args.std, args.gp = (0.5,) * 3, (0.5,) * 3, None
given.out.mkdir()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
timm.utils.CheckpointSaver(model, sgd, args, checkpoint_dir=str(given.out)).save_checkpoint(0, 1.0)
