"""A variant of another package, FIRE of examples/cape-fire, in timm and by its own train.py."""

import csv
import os
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import cape_support

# three runs of train.py in one process: importing takes longer than training
COMMANDS = """
import logging, sys
sys.path.insert(0, sys.argv[1])
import train

for line in sys.argv[2:]:
    logging.getLogger().handlers.clear()  # of the run before
    sys.argv = ["train.py", *line.split("|")]
    try:
        train.main()
    except ValueError as error:
        print("REFUSED", error)
"""


def test_it_is_in_the_lists_of_models():
    for size, names in (("tiny_patch16", "vit_tiny_patch16_*fire_224"), ("", "*vit_*_fire_gap")):
        found = timm.list_models(names)
        assert {name.split("_fire")[0].split("_")[-1] for name in found} == {"patch16", "cape"}
        assert all(size in name for name in found)


def test_its_options_are_a_models_options(create, images):
    model = create("cape_fire", fire_width=8, fire_threshold=5.0, max_global_scale=1.2)
    weights = model.state_dict()
    shapes = {weights[name].shape for name in weights if name.endswith("function.0.weight")}
    assert shapes == {(8, 1)}
    out = model.eval()(images(2, 3, 224, 224))
    assert not torch.allclose(out, create("fire", fire_width=8).eval()(images(2, 3, 224, 224)))
    with pytest.raises(ValueError, match="fire_width = 8 is for fire, cape_fire; alibi"):
        create("alibi", fire_width=8)
    with pytest.raises(ValueError, match="fire_width must be an integer ≥ 1, got 0"):
        create("fire", fire_width=0)


def test_the_functions_are_not_all_alike_at_first(create):
    # timm draws its linear layers anew, with biases of 0
    model = create("fire", fresh=True)
    biases = [p for name, p in model.named_parameters() if name.endswith("function.0.bias")]
    assert len(biases) == 2
    assert all(bias.abs().max() > 0 for bias in biases)


def test_another_variants_model_refuses_its_weights(create):
    state = create("fire", fire_width=8).state_dict()
    create("fire", fire_width=8).load_state_dict(state)
    for other, options in (("cape", {}), ("fire", {})):
        with pytest.raises(ValueError, match="trained with"):
            create(other, **options).load_state_dict(state)


@pytest.mark.release
def test_train_py_trains_resumes_and_refuses_it(tmp_path):
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS names no folder with timm's train.py")
    random = np.random.default_rng(0)
    for split in ("train", "validation"):
        for label in ("a", "b"):
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / label / f"{index}.png")
    shared = ["--data-dir", "images", "--num-classes", "2", "--opt", "adamw", "--lr", "1e-3"]
    shared += ["--device", "cpu", "-b", "4", "--warmup-epochs", "0", "--workers", "0"]
    shared += ["--output", "runs", "--experiment"]
    fire = ["--model", "vit_tiny_patch4_fire_32", "--model-kwargs", "depth=2", "fire_width=8"]
    cape = ["--model", "vit_tiny_patch4_cape_32", "--model-kwargs", "depth=2"]
    resume = ["--resume", "runs/first/last.pth.tar"]
    lines = [
        [*shared, "first", *fire, "--epochs", "1"],
        [*shared, "second", *fire, "--epochs", "2", *resume],
        [*shared, "third", *cape, "--epochs", "2", *resume],
    ]
    command = [sys.executable, "-c", COMMANDS, os.path.abspath(scripts)]
    command += ["|".join(line) for line in lines]
    status, told = cape_support.run(*command, cwd=tmp_path)
    assert status == 0, told[-3000:]
    for experiment, epoch in (("first", "0"), ("second", "1")):
        with (tmp_path / "runs" / experiment / "summary.csv").open() as file:
            (row,) = csv.DictReader(file)
        assert row["epoch"] == epoch
        assert 0 < float(row["train_loss"]) < 10
    (refused,) = (line for line in told.splitlines() if line.startswith("REFUSED"))
    assert "trained with" in refused
    assert "fire" in refused
    assert "cape" in refused
    assert not (tmp_path / "runs" / "third" / "summary.csv").exists()
