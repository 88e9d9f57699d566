"""Draws docs/variants/NAME.png, the pictures of docs/variants.md: training twice, and evaluation.

python tools/docs/draw_variants.py
"""

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from cape_plugins import Positions, token_positions, variants

OUT = Path(__file__).parents[2] / "docs" / "variants"
TOKENS, HEADS, DIM = 24, 4, 32  # of a sequence; of attention; channels of a head
CAPE = {"max_local_shift": 0.5, "max_global_scale": 1.4}
RANDOM = {"random_range": (0.0, 2.0 * TOKENS)}
# variant: options large enough to be seen
SHOWN: dict[str, dict[str, Any]] = {
    "abspos": {"abspos_context": TOKENS},
    "sinpos": {},
    "cape": {"max_global_shift": 8.0, **CAPE},
    "random": RANDOM,
    "relpos": {"relpos_context": TOKENS},
    "rope": {},
    "cape_rope": CAPE,
    "alibi": {},
    "cape_alibi": CAPE,
    "random_rope": RANDOM,
    "pose_rope": {"pose_range": 2.0 * TOKENS},
}


def panels(pos: str) -> dict[str, Tensor]:
    """What the variant adds to the tokens, or the scores of one head for tokens that are all alike.

    Args:
        pos: a variant of SHOWN.

    Returns:
        title → (tokens, channels) or (queries, keys).
    """
    torch.manual_seed(3)
    acts = variants.get(pos, 1).attends is not None
    sizes = dict(dim=HEADS * DIM, heads=HEADS, layers=1) if acts else dict(dim=DIM)
    module = Positions(pos, **sizes, **SHOWN[pos])
    (layer,) = module.attentions or [None]
    alike = torch.ones(1, HEADS, TOKENS, DIM)

    def one(training: bool) -> Tensor:
        added, given = module.train(training)(None, token_positions([TOKENS]))
        if layer is None:
            return added[0]
        return layer.scores(*layer.embed_both(alike, alike, given), given)[0, 0]

    with torch.no_grad():
        titles = ("training, a sample", "training, another", "evaluation")
        return {title: one(title != "evaluation") for title in titles}


def draw(pos: str, out: Path) -> None:
    """Draw the panels of a variant."""
    shown = panels(pos)
    figure = Figure(figsize=(5.6, 2.0), layout="constrained")
    attention = variants.get(pos, 1).attends is not None
    low = min(float(panel.min()) for panel in shown.values())
    high = max(float(panel.max()) for panel in shown.values())
    for axis, (title, panel) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        axis.imshow(panel, cmap="viridis", aspect="auto", vmin=low, vmax=high)
        axis.set_title(title, fontsize=8)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel("key" if attention else "channel", fontsize=7)
        axis.set_ylabel("query" if attention else "token", fontsize=7)
    figure.savefig(out, dpi=80)
    with Image.open(out) as drawn:
        small = drawn.convert("RGB").quantize(64)  # colours: a third of the bytes
    small.save(out, optimize=True)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for pos in SHOWN:
        draw(pos, OUT / f"{pos}.png")
