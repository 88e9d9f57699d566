"""The evaluations of a run by timm's evaluator, which does them in one process."""

import numpy as np
import pytest
import yaml
from counting import HERE
from PIL import Image

pytest.importorskip("timm")


def changes(tmp_path, second="images"):
    """Of the study: three evaluations; the second is of this folder."""
    folders = {"first": "images", "second": second, "third": "images"}
    return {
        "trainer": str(HERE / "untrained.py"),
        "checkpoint": "last.pth.tar",
        "options": {},
        "variants": {"few": {}},
        "evaluations": {
            name: {
                "options": {"data": str(tmp_path / folder), "workers": 0},
                "metrics": {"top1": "higher"},
            }
            for name, folder in folders.items()
        },
    }


@pytest.fixture
def images(tmp_path):
    """Two classes of three images."""
    for number in range(6):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)


def test_an_evaluation_that_fails_is_named_and_those_before_it_are_not_done_again(
    cape_run, tmp_path, images
):
    cape_run(
        fails="few seed 0: evaluation second: cape-timm-eval: error: ",
        **changes(tmp_path, "nowhere"),
    )
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert [path.parent.name[:5] for path in folder.glob("*/scores.csv")] == ["first"]
    (first,) = folder.glob("first-*")
    when = (first / "scores.csv").stat().st_mtime_ns
    cape_run(**changes(tmp_path))
    assert (first / "scores.csv").stat().st_mtime_ns == when
    (third,) = folder.glob("third-*")
    for name in ("scores.csv", "items.csv"):  # they are of the same images
        assert (third / name).read_text() == (first / name).read_text()
    log = (folder / "test.log").read_text().splitlines()
    assert sum(line.startswith("# ") for line in log) == 2  # processes
    assert sum(line.startswith("$ ") for line in log) == 4  # evaluations
    notes = {
        one.parent.name.split("-")[0]: one.read_text() for one in folder.glob("*-*/config.yaml")
    }
    seconds = {name: yaml.safe_load(note)["seconds"] for name, note in notes.items()}
    assert 0 < seconds["third"] < seconds["second"]  # which has the imports of both
