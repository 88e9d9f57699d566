"""Draws docs/cape.png, the picture of docs/variants.md: what CAPE does to the patches of an image.

python tools/docs/draw_picture.py
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from cape_plugins import Augmentation, Draw, patch_grid

SIDE = 8  # patches
SEED = 5  # its shift and scale are large enough to be seen
SETTINGS = Augmentation(
    max_global_shift=0.5,
    max_local_shift=(1 / SIDE, 1 / SIDE),
    max_global_scale=1.4,
    mean_normalize=False,
)


def steps() -> dict[str, Tensor]:
    """The positions after each step of the core's augmentation, all from one draw.

    Returns:
        title → (patches, 2) positions.
    """
    positions = patch_grid(SIDE, SIDE)[None]
    generator = torch.Generator().manual_seed(SEED)
    drawn = SETTINGS.draw(1, 2, generator=generator)
    noise = generator.get_state()
    unscaled = drawn._replace(scale=torch.ones(1))
    shift_only = Augmentation(max_global_shift=0.5, max_local_shift=0.0, mean_normalize=False)

    def apply(which: Augmentation, draw: Draw) -> Tensor:
        generator.set_state(noise)  # the same local shifts in every step
        return which.in_training(positions, 1, draw, generator=generator)[0]

    return {
        "1. positions as given": positions[0],
        "2. all shifted by Δ": apply(shift_only, unscaled),
        "3. each shifted by ε": apply(SETTINGS, unscaled),
        "4. all scaled by λ": apply(SETTINGS, drawn),
    }


def draw(out: Path) -> None:
    """Draw the steps, large enough to be read at a width of 390 pixels."""
    panels = steps()
    figure = Figure(figsize=(5, 5.5), layout="constrained")
    axes = figure.subplots(2, 2).flat
    order = torch.linspace(0, 1, SIDE * SIDE)
    reach = max(1.0, *(float(positions.abs().max()) for positions in panels.values())) + 0.1
    for axis, (title, positions) in zip(axes, panels.items(), strict=True):
        rows, columns = positions.unbind(-1)
        axis.add_patch(Rectangle((-1, -1), 2, 2, fill=False, color="0.6"))
        axis.plot(0, 0, "+", color="0.6", zorder=0)
        axis.scatter(columns, rows, c=order, s=14, cmap="viridis")
        axis.set(xlim=(-reach, reach), ylim=(reach, -reach), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axis.set_aspect("equal")
        axis.set_title(title, fontsize=12)
        axis.tick_params(labelsize=10)
    figure.suptitle("In training: the positions of an image's patches", fontsize=13)
    figure.savefig(out, dpi=180)


if __name__ == "__main__":
    draw(Path(__file__).parents[2] / "docs" / "cape.png")
