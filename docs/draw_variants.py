"""Draws docs/variants/NAME.png, the pictures of docs/variants.md: training twice, and evaluation.

python docs/draw_variants.py
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from cape_plugins import PositionalEmbedding, patch_grid, token_positions, variants
from cape_plugins.attention import AttentionSettings

OUT = Path(__file__).with_name("variants")
TOKENS, SIDE, DIM = 24, 5, 32  # of a sequence; patches along the image; channels
CAPE = {"max_local_shift": 0.5, "max_global_scale": 1.4}
CAPE_IN_IMAGES = {"max_global_shift": 0.5, "max_local_shift": 1 / SIDE, "max_global_scale": 1.4}
RANDOM = {"random_range": (0.0, 2.0 * TOKENS)}
# variant: axes of its picture, and options large enough to be seen
SHOWN = {
    "abspos": (1, {"max_length": TOKENS}),
    "sinpos": (1, {}),
    "cape": (1, {"max_global_shift": 8.0, **CAPE}),
    "random": (1, RANDOM),
    "relpos": (1, {}),
    "rope": (1, {}),
    "cape_rope": (1, CAPE),
    "rope_mixed": (2, {}),
    "cape_rope_mixed": (2, CAPE_IN_IMAGES),
    "alibi": (1, {}),
    "cape_alibi": (1, CAPE),
    "random_rope": (1, RANDOM),
}


def panels(pos: str) -> dict[str, Tensor]:
    """What the variant adds to the tokens, or the scores of one head for tokens that are all alike.

    Args:
        pos: a variant of SHOWN.

    Returns:
        title → (tokens, channels) or (queries, keys).
    """
    axes, options = SHOWN[pos]
    torch.manual_seed(3)
    places = token_positions([TOKENS]) if axes == 1 else patch_grid(SIDE, SIDE)[None]
    module = PositionalEmbedding(DIM, pos, axes=axes, **options)
    unit = 1.0 if axes == 1 else 2 / (SIDE - 1)
    settings = AttentionSettings(head_dim=DIM, heads=4, axes=axes, unit=unit, context=TOKENS)
    (layer,) = variants.attention_layers(pos, 1, settings)
    alike = torch.ones(1, 4, places.shape[1], DIM)

    def one(training: bool) -> Tensor:
        moved = module.train(training).augment(places, 1)
        prepared = variants.prepare(pos, moved, settings)
        if layer is None or prepared is None:
            return module.embedding(moved)[0]
        query, key = layer.embed(alike, prepared), layer.embed(alike, prepared)
        return layer.scores(query, key, prepared, None)[0, 0]

    with torch.no_grad():
        titles = ("training, a sample", "training, another", "evaluation")
        return {title: one(title != "evaluation") for title in titles}


def draw(pos: str, out: Path) -> None:
    """Draw the panels of a variant."""
    shown = panels(pos)
    figure = Figure(figsize=(5.6, 2.0), layout="constrained")
    attention = variants.get(pos).attention is not None
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
