"""cape-transformers-eval and what it tests: tokens of text files, a training, losses."""

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from cape_studies import train_clm  # noqa: E402
from cape_studies.data import tokens  # noqa: E402
from cape_studies.evaluate.transformers import evaluate  # noqa: E402
from cape_studies.evaluate.transformers.evaluate import TextOptions  # noqa: E402

SIZES = "hidden_size=16 intermediate_size=24 num_hidden_layers=1 num_attention_heads=2"
LENGTHS = dict(length=[16, 32, 64], scored=8, bins=[8, 32, 64], trained_length=16)


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
    """type, options → the folder of a model after three updates."""

    def make(kind, *words):
        out = tmp_path_factory.mktemp("run")
        given = ["--data", str(prepared), "--out", str(out), "--model-type", kind, *words]
        given += ["--config", *SIZES.split(), "--length", "16", "--batch", "4", "--steps", "3"]
        train_clm.main([*given, "--warmup", "1", "--log", "1"])
        return out / "model"

    return make


def scores(folder, prepared, **options):
    found = evaluate.run(TextOptions(model=[f"a={folder}"], data=prepared, **LENGTHS | options))
    return {(one.about["length"], one.about["position"], one.metric): one for one in found}


def test_each_file_is_in_one_part_and_begins_with_the_end(prepared):
    parts = [tokens.texts_of(np.load(prepared / f"{part}.npy")) for part in tokens.PARTS]
    assert sum(map(len, parts)) == 40
    tokenizer = transformers.AutoTokenizer.from_pretrained(prepared / "tokenizer")
    texts = {tokenizer.decode(text[1:]) for part in parts for text in part}
    assert len(texts) == 40
    assert all(text.startswith("def name_") for text in texts)


def test_the_same_tokens_are_scored_at_each_length(trained, prepared):
    folder = trained("llama", "--augment", "pose_rope", "--augment-options", "pose_range=64")
    found = scores(folder, prepared)
    windows = evaluate.read_windows(TextOptions(model=["a=b"], data=prepared, **LENGTHS))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(model).__name__ == "LlamaForCausalLM"
    for length in (16, 32, 64):
        given = windows[:, -length:]
        with torch.no_grad():
            logits = model(given).logits[:, -9:-1]
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), given[:, -8:].flatten())
        one = found[length, "all", "loss"]
        assert one.value == pytest.approx(expected.item(), abs=1e-5)
        assert (one.count, one.weight) == (len(windows), 8 * len(windows))
    assert found[16, "all", "perplexity"].value == pytest.approx(
        np.exp(found[16, "all", "loss"].value)
    )
    assert {where for length, where, _ in found if length == 64} == {"all", "2-8", "9-32", "33-64"}


def test_transformers_scaling_is_for_its_own_models_and_beyond_training_alone(trained, prepared):
    plain, scaled = (
        scores(folder, prepared, rope_scaling=kind)
        for folder in [trained("llama")]
        for kind in ("none", "yarn")
    )
    assert plain[16, "all", "loss"].value == scaled[16, "all", "loss"].value
    assert plain[64, "all", "loss"].value != scaled[64, "all", "loss"].value
    with pytest.raises(ValueError, match="rope-scaling"):
        scores(trained("cape_llama"), prepared, rope_scaling="yarn")


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_a_scaling_has_the_factor_of_the_length(trained, prepared, kind):
    options = TextOptions(model=["a=b"], data=prepared, **LENGTHS, rope_scaling=kind)
    found = evaluate.load(trained("llama"), 64, options).config.rope_parameters
    assert (found["rope_type"], found["factor"]) == (kind, 4)  # 64 / 16


@pytest.mark.release
def test_a_training_goes_on(prepared, tmp_path, capsys):
    given = ["--data", str(prepared), "--out", str(tmp_path), "--config", *SIZES.split()]
    given += ["--length", "16", "--batch", "4", "--save", "2", "--log", "1"]
    train_clm.main([*given, "--steps", "2"])
    capsys.readouterr()
    train_clm.main([*given, "--steps", "4"])
    steps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert [line.split()[1] for line in steps] == ["3/4", "4/4"]


def test_a_text_that_is_too_short_is_told(prepared):
    with pytest.raises(ValueError, match="so many tokens"):
        evaluate.read_windows(TextOptions(model=["a=b"], data=prepared, length=[100_000]))


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
    coded = Path(shutil.copytree(trained("llama"), "coded"))
    config = json.loads((coded / "config.json").read_text())
    unknown = config | {"model_type": "unknown", "auto_map": {"AutoConfig": "code.Config"}}
    (coded / "config.json").write_text(json.dumps(unknown))
    (coded / "code.py").write_text("raise SystemExit('its code was run')")
    with pytest.raises(ValueError, match="custom code"):
        scores(coded, prepared)
    theirs = config | {"auto_map": {"AutoModelForCausalLM": "someone/model--code.Model"}}
    (coded / "config.json").write_text(json.dumps(theirs))
    assert scores(coded, prepared)  # of the class that transformers itself has
