"""A recipe of espnet3, which has an ASR task of its own; only the recipe's config names us."""

import sys
from pathlib import Path

import pytest

from cape_support import run

pytest.importorskip("espnet3")
pytest.importorskip("lightning")
torch = pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")

FILES = {
    "run.py": """
from espnet3.systems.esp2_asr.system import ASRSystem
from espnet3.systems.launch import launch

if __name__ == "__main__":
    launch(ASRSystem)
""",
    "dataset/__init__.py": """
import numpy as np
from espnet3.components.data.base_dataset import BaseDataset
from espnet3.contract import Field

class Dataset(BaseDataset):
    fields = (Field("speech", "audio"), Field("text", "text"))

    def __len__(self):
        return 4

    def __getitem__(self, index):
        noise = np.random.default_rng(index).normal(0, 0.1, 4000 + 500 * index)
        return {"speech": noise.astype(np.float32), "text": "ab"}
""",
    "training.yaml": """
task: espnet3.systems.esp2_asr.task.ASRTask
recipe_dir: RECIPE
dataset:
  train: [{data_src_args: {}}]
  valid: [{data_src_args: {}}]
  preprocessor:
    _target_: espnet2.train.preprocessor.CommonPreprocessor
    token_type: char
    token_list: [<blank>, <unk>, a, b, <sos/eos>]
tokenizer: {save_path: RECIPE/tokens, model_type: char}
model:
  token_list: [<blank>, <unk>, a, b, <sos/eos>]
  frontend: cape_fbank
  frontend_conf: {fs: 8000, n_mels: 16}
  specaug: cape_specaug
  specaug_conf: {max_freq_mask_width: 4}
  encoder: cape_transformer
  encoder_conf: {pos: cape, output_size: 32, linear_units: 64, num_blocks: 2}
  normalize: utterance_mvn
  normalize_conf: {}
  decoder: null
  model: cape_asr
  model_conf: {ctc_weight: 1.0}
optimizer: {lr: 0.001}
scheduler: {warmup_steps: 10}
dataloader: {train: {iter_factory: {batches: {batch_size: 2}}}}
parallel: null  # its own process: dask is not a dependency of ESPnet
trainer:
  accelerator: cpu
  max_epochs: 2
  logger: [{_target_: lightning.pytorch.loggers.CSVLogger, save_dir: RECIPE}]
""",
    # characters need no tokenizer; espnet3 looks for its files
    "tokens/char.model": "",
    "tokens/char.vocab": "",
}


@pytest.mark.release
def test_espnet3_trains_a_recipe_that_names_our_encoder(tmp_path: Path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content.replace("RECIPE", str(tmp_path)))
    command = "run.py --stages collect_stats train --training_config training.yaml"
    status, said = run(sys.executable, *command.split(), cwd=tmp_path)
    assert status == 0, said[-3000:]
    training = tmp_path / "exp" / "training"
    (checkpoint,) = training.glob("step4.ckpt")  # 2 epochs of 2 batches
    saved = torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"]
    assert all(value.isfinite().all() for value in saved.values())
    config = yaml.safe_load((training / "config.yaml").read_text())
    assert config["encoder"] == "cape_transformer"
