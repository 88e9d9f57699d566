"""The page's command: transformers' own run_clm.py trains our types by name.

It is not in transformers' wheel: TRANSFORMERS_SCRIPTS names a folder with it, of their repository's
examples/pytorch/language-modeling.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import cape_support
from cape_support import ROOT, commands

pytestmark = pytest.mark.release

README = ROOT / "integrations" / "transformers" / "README.md"
#: after the page's command: the last word counts
TINY = ["--block_size", "32", "--per_device_train_batch_size", "4", "--max_steps", "3"]
TINY += ["--save_strategy", "no", "--report_to", "none", "--cache_dir", "cache"]
SIZES = "hidden_size=32,head_dim=8,intermediate_size=48,num_hidden_layers=2"
SIZES += ",num_attention_heads=4,num_key_value_heads=4,vocab_size=300"


@pytest.fixture
def train(tmp_path):
    """The fields of a configuration → the folder that run_clm.py has trained into, offline."""
    pytest.importorskip("datasets")
    pytest.importorskip("evaluate")
    tokens = pytest.importorskip("cape_studies.data.tokens")
    scripts = os.environ.get("TRANSFORMERS_SCRIPTS")
    if not scripts:
        pytest.skip("TRANSFORMERS_SCRIPTS names no folder with transformers' run_clm.py")
    text = "\n".join(f"def name_{i}(value): return value + {i}" for i in range(400))
    (tmp_path / "code.txt").write_text(text)
    tokens.write(tmp_path, {"train": [text]}, 300)

    def run(fields: str) -> Path:
        (line,) = (one for one in commands(README) if one[:2] == ["python", "run_clm.py"])
        words = [Path(scripts).resolve() / "run_clm.py", *line[2:], *TINY]
        words += ["--config_overrides", f"{fields},{SIZES}"]
        home = {"HF_HOME": tmp_path / "home", "HF_HUB_OFFLINE": 1, "CUDA_VISIBLE_DEVICES": ""}
        status, told = cape_support.run(sys.executable, *words, cwd=tmp_path, **home)
        assert status == 0, told[-3000:]
        return tmp_path / "run"

    return run


@pytest.mark.parametrize("fields", ["pos=alibi", "pos=cape_rope,max_global_scale=1.2"])
def test_it_trains_a_folder_that_loads_and_generates(train, fields):
    folder = train(fields)
    kept = json.loads((folder / "config.json").read_text())
    pos = fields.partition(",")[0].removeprefix("pos=")
    assert (kept["model_type"], kept["pos"], kept["hidden_size"]) == ("cape_llama", pos, 32)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(["def name_3"], return_tensors="pt")
    out = model.generate(given.input_ids, max_new_tokens=5, do_sample=False)
    assert out.shape[1] > given.input_ids.shape[1]
    assert model.state_dict()[f"model.positions.mark.variant_{pos}"] is not None
    assert all(one.isfinite().all() for one in model.parameters())
