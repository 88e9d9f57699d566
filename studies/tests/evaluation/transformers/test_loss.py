"""What cape-transformers-eval tests: tokens of text files, and what was trained on them."""

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")

from cape_studies import train_clm  # noqa: E402
from cape_studies.data import tokens  # noqa: E402
from cape_studies.evaluate.transformers import evaluate  # noqa: E402
from cape_studies.evaluate.transformers.evaluate import TextOptions  # noqa: E402

SIZES = "hidden_size=16 intermediate_size=24 num_hidden_layers=1 num_attention_heads=2"
LENGTHS = dict(length=[16, 64], scored=8, bins=[8, 32, 64])


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Tokens of forty small files."""
    folder, out = (tmp_path_factory.mktemp(name) for name in ("text", "tokens"))
    for i in range(40):
        lines = [f"def name_{i}_{j}(value): return value + {j}" for j in range(20)]
        (folder / f"{i}.py").write_text("\n".join(lines))
    tokens.make(str(folder), out, vocabulary=300)
    return out


@pytest.fixture(scope="session")
def trained(prepared, tmp_path_factory):
    """The folder of a Llama after three updates."""
    out = tmp_path_factory.mktemp("run")
    given = ["--data", str(prepared), "--out", str(out), "--model-type", "llama"]
    given += ["--augment", "pose_rope", "--augment-options", "pose_range=64", "--config"]
    given += [*SIZES.split(), "--length", "16", "--batch", "4", "--steps", "3"]
    train_clm.main([*given, "--warmup", "1", "--log", "1"])
    return out / "model"


def scores(folder, prepared):
    return [*evaluate.run(TextOptions(model=[f"a={folder}"], data=prepared, **LENGTHS))]


def test_each_file_is_in_one_part_and_begins_with_the_end(prepared):
    parts = [tokens.texts_of(np.load(prepared / f"{part}.npy")) for part in tokens.PARTS]
    assert sum(map(len, parts)) == 40
    tokenizer = transformers.AutoTokenizer.from_pretrained(prepared / "tokenizer")
    texts = {tokenizer.decode(text[1:]) for part in parts for text in part}
    assert len(texts) == 40
    assert all(text.startswith("def name_") for text in texts)


@pytest.mark.release
def test_a_training_goes_on(prepared, tmp_path, capsys):
    given = ["--data", str(prepared), "--out", str(tmp_path), "--config", *SIZES.split()]
    given += ["--length", "16", "--batch", "4", "--save", "2", "--log", "1"]
    train_clm.main([*given, "--steps", "2"])
    capsys.readouterr()
    train_clm.main([*given, "--steps", "4"])
    steps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert [line.split()[1] for line in steps] == ["3/4", "4/4"]


def test_a_model_is_read_from_its_folder_alone(trained, prepared, tmp_path, monkeypatch):
    def connect(*where, **_):
        pytest.fail(f"connected to {where}")

    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.chdir(tmp_path)
    adapter = {"base_model_name_or_path": "someone/model", "peft_type": "LORA"}
    Path("adapter").mkdir()
    Path("adapter", "adapter_config.json").write_text(json.dumps(adapter))
    for name in ("someone/model", "adapter"):
        with pytest.raises(ValueError, match=f"{name} is no folder with .*config.json"):
            scores(name, prepared)
    coded = Path(shutil.copytree(trained, "coded"))
    config = json.loads((coded / "config.json").read_text())
    unknown = config | {"model_type": "unknown", "auto_map": {"AutoConfig": "code.Config"}}
    (coded / "config.json").write_text(json.dumps(unknown))
    (coded / "code.py").write_text("raise SystemExit('its code was run')")
    with pytest.raises(ValueError, match="custom code"):
        scores(coded, prepared)
    theirs = config | {"auto_map": {"AutoModelForCausalLM": "someone/model--code.Model"}}
    (coded / "config.json").write_text(json.dumps(theirs))
    assert scores(coded, prepared)  # of the class that transformers itself has
    model = transformers.AutoModelForCausalLM.from_pretrained(
        trained
    )  # augmented in training alone
    assert type(model) is transformers.LlamaForCausalLM
