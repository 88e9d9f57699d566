"""A variant of another package, FIRE of examples/cape-fire, compared on images of one's own."""

import sys

import numpy as np
import pytest
import yaml
from PIL import Image

import cape_support

pytestmark = pytest.mark.release
pytest.importorskip("timm")
pytest.importorskip("lightning")


def test_cape_run_compares_fire_with_rotary_attention(tmp_path):
    random = np.random.default_rng(0)
    for label in ("dark", "light"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(80):
            pixels = random.integers(0, 128, (32, 32, 3)) + (127 if label == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"images/{label}/{index}.png")
    shared = [
        "my_images",
        "--data",
        tmp_path / "images",
        "--out",
        tmp_path / "out",
        "run=[rope,fire]",
    ]
    shared += ["seeds=[0]", "options.steps=2", "options.model-kwargs.depth=1"]
    shared += ["options.batch-size=16", "+variants.fire.options.model-kwargs.fire_width=8"]
    for command in ("run", "report"):
        code = f"from cape_studies.{command} import main; main()"
        status, said = cape_support.run(sys.executable, "-c", code, *shared, cwd=tmp_path)
        assert status == 0, said[-4000:]
    (trained,) = tmp_path.glob("out/runs/fire-seed0-*/trained.yaml")
    assert yaml.safe_load(trained.read_text())
    assert "fire_width=8" in (trained.parent / "train.log").read_text()
    (scores,) = trained.parent.glob("size-*/scores.csv")
    assert len(scores.read_text().splitlines()) > 1
    told = "".join(p.read_text() for p in (tmp_path / "out/my_images/report").glob("*.csv"))
    assert "rope" in told
    assert "fire" in told
