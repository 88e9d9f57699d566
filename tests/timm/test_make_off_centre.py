"""integrations/timm/make_off_centre.py: the same images, in the middle and anywhere."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "integrations" / "timm" / "make_off_centre.py"


def make(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_the_object_is_whole_on_both_canvases(tmp_path):
    pixels = np.random.default_rng(0).integers(1, 256, (6, 8, 8), dtype=np.uint8)
    for index, one in enumerate(pixels):
        path = tmp_path / "images" / "a" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(path)
    done = make("--images", tmp_path / "images", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    corners = set()
    for index, one in enumerate(pixels):
        centre = read(tmp_path / "out" / "centre" / "a" / f"{index}.png")
        assert centre.shape == (12, 12)
        assert (centre[2:10, 2:10] == one).all()
        anywhere = read(tmp_path / "out" / "anywhere" / "a" / f"{index}.png")
        rows, columns = (np.flatnonzero(anywhere.any(axis=axis)) for axis in (1, 0))
        assert (anywhere[rows[0] : rows[0] + 8, columns[0] : columns[0] + 8] == one).all()
        corners.add((rows[0], columns[0]))
    assert len(corners) > 1


def test_a_folder_without_images_and_too_small_a_canvas_are_refused(tmp_path):
    for arguments, message in (
        (("--images", tmp_path, "--out", tmp_path / "out"), "holds no <class>/<image>"),
        (("--images", tmp_path, "--out", tmp_path, "--canvas", 0.5), "--canvas must be ≥ 1"),
    ):
        done = make(*arguments)
        assert done.returncode == 2
        assert message in done.stderr.splitlines()[-1]
