"""Draws docs/cape.png, the picture of the README: what CAPE does to the patches of an image.

python docs/draw_picture.py
"""

from pathlib import Path

import torch
from matplotlib import pyplot as plt

from cape_plugins import Augmentation, Draw, patch_grid, sinusoid_2d

SIDE, DIM = 8, 64


def main() -> None:
    """Draw and save."""
    grid = patch_grid(SIDE, SIDE)[None]
    full = Augmentation(0.5, (1 / SIDE, 1 / SIDE), 1.4, mean_normalize=False)
    draw = Draw(shift=torch.tensor([[0.35, -0.4]]), scale=torch.tensor([1.3]))  # one that shows
    unscaled = draw._replace(scale=torch.ones(1))
    noise = torch.Generator().manual_seed(5)
    shifted = Augmentation(0.5, mean_normalize=False).apply(grid, unscaled)
    jittered = full.apply(grid, unscaled, generator=noise)
    scaled = full.apply(grid, draw, generator=noise.manual_seed(5))
    steps = {
        "positions\n(centred)": grid,
        "+ global shift Δ\n(per sample)": shifted,
        "+ local shift ε\n(per token)": jittered,
        "× global scale λ\n(per sample)": scaled,
    }
    figure, axes = plt.subplots(1, 5, figsize=(11, 2.7), layout="constrained")
    order = torch.linspace(0, 1, SIDE * SIDE)
    for axis, (title, positions) in zip(axes, steps.items(), strict=False):
        rows, columns = positions[0].unbind(-1)
        axis.scatter(columns, rows, c=order, s=9, cmap="viridis")
        axis.add_patch(plt.Rectangle((-1, -1), 2, 2, fill=False, color="0.6", lw=0.8))
        axis.set(xlim=(-2.1, 2.1), ylim=(2.1, -2.1), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axis.set_aspect("equal")
        axis.set_title(title, fontsize=9)
    axes[4].imshow(sinusoid_2d(scaled, DIM)[0], cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
    axes[4].set_title("→ cos | sin,\nadded to the content", fontsize=9)
    axes[4].set(xlabel="channel", ylabel="patch", xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_name("cape.png"), dpi=100)


if __name__ == "__main__":
    main()
