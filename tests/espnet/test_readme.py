"""What README and integrations/espnet/README.md say of ESPnet, at reduced size."""

import re

import numpy as np
import pytest
import yaml

from cape_support import ROOT, block_with, blocks, shell

pytest.importorskip("espnet2")

import soundfile

ENCODERS = ("transformer", "conformer", "branchformer", "e_branchformer")
SMALLER = " --max_epoch 1 --num_workers 0 --batch_bins 64000 --use_matplotlib false"
for size in ("output_size=16", "attention_heads=2", "linear_units=32", "num_blocks=1"):
    SMALLER += f" --encoder_conf {size}"


@pytest.mark.release
def test_the_quickstart_prepares_and_trains(tmp_path):
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
    assert script.count(config) == script.count("--ngpu 1") == 1
    shell(script.replace(config, config + SMALLER).replace("--ngpu 1", "--ngpu 0"), tmp_path)
    assert (tmp_path / "exp" / "cape" / "valid.cer_ctc.best.pth").exists()


def test_the_config_of_the_first_page_is_taken_by_every_encoder_that_it_names():
    from espnet2.tasks.asr import ASRTask

    (block,) = blocks(ROOT / "README.md", "yaml")
    config = yaml.safe_load(block)
    named = {config["encoder"], *re.findall(r"cape_\w+", block)}
    assert named == {f"cape_{name}" for name in ENCODERS}
    for name in named:
        given = ["--encoder", name, "--token_list", "tokens", "--output_dir", "out"]
        given += ["--model_conf", "ctc_weight=1.0", "--encoder_conf", "num_blocks=1"]
        for option, value in config["encoder_conf"].items():
            given += ["--encoder_conf", f"{option}={value}"]
        arguments = ASRTask.get_parser().parse_args(given)
        arguments.token_list = ["<blank>", "<unk>", "a", "<sos/eos>"]
        model = ASRTask.build_model(arguments)
        assert model.encoder.pos == config["encoder_conf"]["pos"]
