"""What README and integrations/espnet/README.md say of ESPnet, at reduced size."""

import re

import numpy as np
import pytest
import soundfile
import yaml

from cape_support import ROOT, block_with, shell
from espnet_support import audio

SMALLER = " --max_epoch 1 --num_workers 0 --batch_bins 64000 --use_matplotlib false"
for size in ("output_size=16", "attention_heads=2", "linear_units=32", "num_blocks=1"):
    SMALLER += f" --encoder_conf {size}"


@pytest.mark.release
def test_the_quickstart_prepares_trains_and_recognises(tmp_path):
    script = block_with(ROOT / "integrations" / "espnet" / "README.md", "quickstart.yaml")
    for name in ("configs", "integrations"):
        (tmp_path / name).symlink_to(ROOT / name)
    noise = np.random.default_rng(0)
    for split, count in (("train", 6), ("valid", 2), ("test", 1)):
        folder = tmp_path / "wavs" / split
        folder.mkdir(parents=True)
        for index in range(count):
            soundfile.write(folder / f"{split}{index}.wav", noise.normal(0, 0.1, 16000), 16000)
            (folder / f"{split}{index}.txt").write_text(["one\n", "two\n"][index % 2])
    config = "--config configs/espnet/quickstart.yaml"
    assert config in script
    assert script.count("--ngpu 1") == 2
    output = shell(
        script.replace(config, config + SMALLER).replace("--ngpu 1", "--ngpu 0"), tmp_path
    )
    assert output.splitlines()[-1].split()[0] == "test0"  # the words that it recognises
    assert (tmp_path / "exp" / "cape" / "valid.cer_ctc.best.pth").exists()


@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("README.md", "encoder_conf:"),
        ("integrations/espnet/README.md", "was: conformer"),
        ("integrations/espnet/README.md", "encoder: cape_transformer"),
    ],
)
def test_a_pages_config_makes_models_that_run_with_each_encoder_that_it_names(page, part, build):
    """With ESPnet's default frontend, whose hop ``model: cape_asr`` compares."""
    block = block_with(ROOT / page, part, "yaml")
    settings = {"frontend": "default", "frontend_conf": {"fs": 16000}, **yaml.safe_load(block)}
    settings["encoder_conf"] |= dict(output_size=16, attention_heads=2, num_blocks=1)
    for name in {settings["encoder"], *re.findall(r"cape_\w+", block)}:
        model = build(**{**settings, "encoder": name}).eval()
        encoded, lengths = model.encode(*audio(2.0, 1.0))
        assert encoded.isfinite().all()
        assert lengths[0] > lengths[1] > 0
