"""studies/data/score_images.py: γ in testing, and logits averaged over sizes."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from lab_support import SCRIPTS, check_items, rows

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402

from cape_studies.evaluate.timm import loading  # noqa: E402
from cape_studies.evaluate.timm.options import TimmOptions  # noqa: E402

SCRIPT = SCRIPTS / "score_images.py"


@pytest.fixture
def scored(data, tmp_path, monkeypatch):
    """Options → condition → how many images are right, first and among the first five."""

    def call(checkpoint: Path, *options: object) -> dict[str, list[int]]:
        csv, items = tmp_path / "o.csv", tmp_path / "i.csv"
        words = ["--checkpoint", checkpoint, "--data", data.parent, "--split", data.name]
        words += ["--csv", csv, "--items", items, "--workers", 0, "--crop-pct", 1, *options]
        monkeypatch.setattr(sys, "argv", ["score_images", *map(str, words)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        check_items(rows(csv), items)
        found: dict[str, list[int]] = {}
        for row in rows(csv):
            right = round(float(row["value"]) * int(row["items"]) / 100)
            found.setdefault(row["condition"], []).append(right)
        return found

    return call


def load(path: Path, **kwargs: float) -> torch.nn.Module:
    options = TimmOptions(checkpoint=[str(path)], model_kwargs=kwargs, data=["x"])
    return loading.load(str(path), options, torch.device("cpu")).model


def by_hand(data: Path, models: dict[int, torch.nn.Module]) -> list[int]:
    """[top-1, top-5] of the mean of logits over sizes, each of its model."""
    paths = sorted(data.glob("*/*.png"))
    images = [Image.open(path).convert("RGB") for path in paths]
    each = []
    for size, model in models.items():
        transform = create_transform(
            size, crop_pct=1, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
        )
        with torch.no_grad():
            each.append(model(torch.stack([transform(image) for image in images])))
    targets = torch.tensor([int(path.parent.name) for path in paths])[:, None]
    right = sum(each).argsort(dim=-1, descending=True) == targets
    return [int(right[:, :top].sum()) for top in (1, 5)]


def test_gamma_is_a_number_or_a_rule_of_table_6(cape, data, scored):
    found = scored(cape, "--resolutions", 24, "--extents", "1", "ratio", "sqrt", "0.25")
    gammas = {"24 1": 1.0, "24 ratio": 1.5, "24 sqrt": 1.5**0.5, "24 0.25": 0.25}
    assert found == {at: by_hand(data, {24: load(cape, extent=g)}) for at, g in gammas.items()}


def test_logits_are_averaged_over_three_sizes_as_the_authors_do_it(cape, data, scored):
    found = scored(cape, "--resolutions", 16, "--step", 8)
    models = dict.fromkeys((8, 16, 24), load(cape))
    assert found == {"16": by_hand(data, models)}
    assert found != {"16": by_hand(data, {16: load(cape)})}


def test_the_ratio_is_that_of_each_averaged_size(cape, data, scored):
    found = scored(cape, "--resolutions", 16, "--step", 8, "--extents", "ratio")
    each = {size: load(cape, extent=size / 16) for size in (8, 16, 24)}
    assert found == {"16 ratio": by_hand(data, each)}
