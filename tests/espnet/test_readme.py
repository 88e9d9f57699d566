"""README's commands for ESPnet, at reduced size, on a small corpus."""

import numpy as np
import pytest

from cape_support import ROOT, block_with, shell

pytest.importorskip("espnet2")

import soundfile

SMALLER = " --max_epoch 1 --num_workers 0 --batch_bins 64000 --use_matplotlib false"
for size in ("output_size=16", "attention_heads=2", "linear_units=32", "num_blocks=1"):
    SMALLER += f" --encoder_conf {size}"


@pytest.mark.release
def test_the_quickstart_prepares_and_trains(tmp_path):
    script = block_with(ROOT / "README.md", "prepare_wavs.py")
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
    assert script.count(config) == script.count("--ngpu 1") == 1
    shell(script.replace(config, config + SMALLER).replace("--ngpu 1", "--ngpu 0"), tmp_path)
    assert (tmp_path / "exp" / "cape" / "valid.cer_ctc.best.pth").exists()
