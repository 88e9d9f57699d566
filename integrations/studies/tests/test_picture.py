"""README's picture, docs/cape.png: the steps that it shows, and that the file is what is drawn."""

import runpy
from pathlib import Path

import pytest
import torch

from cape_plugins import patch_grid

DOCS = Path(__file__).resolve().parents[3] / "docs"
picture = runpy.run_path(str(DOCS / "draw_picture.py"))


def test_the_steps_of_the_augmentation_add_up():
    grid, shifted, jittered, scaled = picture["steps"]().values()
    assert torch.equal(grid, patch_grid(8, 8))
    shift = (shifted - grid)[0]
    torch.testing.assert_close(shifted, grid + shift)
    assert 0.2 < shift.abs().min() < shift.abs().max() <= 0.5  # large enough to be seen
    assert 0 < (jittered - shifted).abs().max() <= 1 / 8
    scale = (scaled / jittered).median()
    torch.testing.assert_close(scaled, jittered * scale)
    assert 1.1 < scale <= 1.4


def test_the_file_is_what_is_drawn(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture["draw"](tmp_path / "drawn.png")
    with image.open(tmp_path / "drawn.png") as drawn, image.open(DOCS / "cape.png") as kept:
        assert drawn.size == kept.size
        difference = torch.tensor(list(drawn.convert("L").tobytes())).float()
        difference -= torch.tensor(list(kept.convert("L").tobytes())).float()
    assert difference.abs().mean() < 2  # fonts may differ
