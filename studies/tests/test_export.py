"""``cape-studies export``: real runs of cape-run, which the hosts' own functions load."""

import importlib.util
import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from matplotlib.image import imsave

from cape_studies import export, run
from cape_support import ROOT, block_with

TINY = dict(patch_size=4, img_size=32, embed_dim=32, depth=1, num_heads=2)
LOSS = {
    "loss": {
        "script": str(ROOT / "studies" / "data" / "read_losses.py"),
        "options": {"log": "{trained}.log", "csv": "{csv}"},
        "metrics": {"nll_loss": "lower"},
    }
}
SHOWN = dict(evaluation="loss", metric="nll_loss", trained_on=[], baseline="cape")
STUDIES = {
    "timm": dict(
        title="Noise",
        host="timm",
        recipe="../timm/cifar10.yaml",
        variants={"cape": {"options": {"model": "vit_tiny_patch4_cape_low_32"}}},
        options={"model-kwargs": TINY, "num-classes": 2, "batch-size": 2, "epochs": 1,
                 "warmup-epochs": 0, "log-interval": 1, "data-dir": "IMAGES"},
        evaluations={"sizes": {"options": {"data": "IMAGES", "split": "train", "resolutions": [32]},
                               "metrics": {"top1": "higher"}}},
    ),
    "fairseq": dict(
        defaults=["demo_fairseq", "_self_"], evaluations={"length": None, **LOSS}, report=SHOWN
    ),
    "espnet": dict(defaults=["demo_espnet", "_self_"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """host → the folder of its run, whose weights are then moved off what it learnt; made once."""

    @cache
    def train(host: str) -> Path:
        pytest.importorskip({"espnet": "espnet2"}.get(host, host))
        if host == "timm" and not os.environ.get("TIMM_SCRIPTS"):
            pytest.skip("TIMM_SCRIPTS does not name a folder with timm's train.py")
        folder = tmp_path_factory.mktemp(host)
        for index in range(4):  # two classes, two images of noise each
            path = folder / "images" / "train" / "ab"[index % 2] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            imsave(path, torch.rand(32, 32, 3).numpy())
        study = yaml.safe_dump(STUDIES[host]).replace("IMAGES", str(folder / "images"))
        (folder / "small.yaml").write_text(study)
        words = [str(folder / "small.yaml"), "--quick", "--out", str(folder / "out"), "seeds=[3]"]
        words += ["run=[cape_rope]" if host == "espnet" else "run=[cape]"]
        words += ["--timm-scripts", os.environ["TIMM_SCRIPTS"]] if host == "timm" else []
        run.main(words)
        (found,) = (folder / "out" / "runs").iterdir()
        file = checkpoint(found)
        content = torch.load(file, weights_only=False)
        weights = content.get("state_dict", content.get("model", content))
        for name, value in weights.items():
            if value.is_floating_point() and ".mark." not in name:  # the settings
                value.add_(0.1 * torch.randn_like(value))
        torch.save(content, file)
        return found

    return train


def checkpoint(found: Path) -> Path:
    """The file that the study tests."""
    names = ("last.pth.tar", "checkpoint_last.pt", "valid.cer_ctc.best.pth")
    (file,) = (found / "train" / name for name in names if (found / "train" / name).exists())
    return file


def exported(found: Path, folder: Path, *options: str) -> Path:
    export.main(["export", str(found), str(folder), *options])
    return folder


def loaded_as_the_card_says(folder: Path):
    """What the code of README.md calls ``model``; the header of README.md."""
    text = (folder / "README.md").read_text()
    names: dict = {}
    exec(block_with(text, "FOLDER", "python").replace("FOLDER", str(folder)), names)
    return names["model"], yaml.safe_load(text.split("---")[1])


def test_timm_and_transformers_load_a_run_of_train_py(finished, tmp_path):
    found = finished("timm")
    folder = exported(found, tmp_path / "model", "--license", "cc-by-4.0")
    model, card = loaded_as_the_card_says(folder)
    assert card["license"] == "cc-by-4.0"
    assert card["pipeline_tag"] == "image-classification"
    usual = (folder / "README.md").stat().st_mode
    assert {file.stat().st_mode for file in folder.iterdir()} == {usual}  # safetensors' was 0600

    import timm

    own = timm.create_model("vit_tiny_patch4_cape_low_32", num_classes=2, **TINY).eval()
    timm.models.load_checkpoint(own, str(checkpoint(found)), weights_only=False)
    pixels = torch.randn(2, 3, 32, 48)
    expected = own(pixels)
    assert expected.shape == (2, 2)
    assert torch.equal(model.eval()(pixels), expected)
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == (3, 32, 32)
    assert tuple(config["mean"]) == (0.4914, 0.4822, 0.4465)  # the recipe's

    transformers = pytest.importorskip("transformers")
    wrapped = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert torch.equal(wrapped(pixels).logits, expected)


def test_fairseq_loads_a_run_whose_data_are_gone_and_cuts_words(finished, tmp_path):
    found = finished("fairseq")
    (prepared,) = (found.parents[1] / "prepared").glob("numbers-??????????")
    codes = "--bpe-codes", str(prepared / "codes.txt")
    (prepared / "codes").rename(codes[1])
    folder = exported(found, tmp_path / "model", *codes)
    Path(codes[1]).rename(prepared / "codes")
    prepared.rename(tmp_path / "moved")
    try:
        model, _ = loaded_as_the_card_says(folder)
    finally:
        (tmp_path / "moved").rename(prepared)
    assert model.bpe.encode("one two") == "one two"
    assert model.decode(model.tgt_dict.encode_line("vier@@ und@@ zwanzig")) == "vierundzwanzig"
    assert "@@" not in "".join(model.translate(["one two", "two"], beam=1, max_len_b=5))

    from fairseq.checkpoint_utils import load_model_ensemble

    (own,), _ = load_model_ensemble([str(checkpoint(found))])
    given = torch.tensor([[5, 6, 7, 2]]), torch.tensor([4]), torch.tensor([[2, 8, 9]])
    expected = own.eval()(*given)[0]
    torch.testing.assert_close(model.models[0](*given)[0], expected, rtol=0, atol=0)
    before, after = (file.stat().st_size for file in (checkpoint(found), folder / "model.pt"))
    assert after < 0.5 * before  # without the optimizer's state


@pytest.mark.release  # a minute: ESPnet is imported in five processes
def test_espnet_loads_a_run_from_its_zip(finished, tmp_path, monkeypatch):
    found = finished("espnet")
    folder = exported(found, tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))  # where the downloader unpacks
    model, card = loaded_as_the_card_says(folder)
    assert card["library_name"] == "espnet"

    from espnet2.bin.asr_inference import Speech2Text

    own = Speech2Text(found / "train" / "config.yaml", checkpoint(found)).asr_model.eval()
    speech, lengths = torch.randn(1, 8000), torch.tensor([8000])
    expected, _ = own.encode(speech, lengths)
    torch.testing.assert_close(model.asr_model.encode(speech, lengths)[0], expected)
    torch.testing.assert_close(model.asr_model.ctc.ctc_lo.weight, own.ctc.ctc_lo.weight)


def test_files_that_a_config_names_come_along_but_for_those_of_the_training(tmp_path):
    for name in ("bpe.model", "shape"):
        (tmp_path / name).write_text(name)
    (tmp_path / "stage" / "data").mkdir(parents=True)
    config = {
        "bpemodel": str(tmp_path / "bpe.model"),
        "normalize_conf": {"stats_file": str(tmp_path / "shape")},
        "train_shape_file": [str(tmp_path / "shape")],
        "token_list": ["/", "a", "bpe.model"],
    }
    assert export._with_files(config, tmp_path / "stage") == {
        "bpemodel": "data/0-bpe.model",
        "normalize_conf": {"stats_file": "data/1-shape"},
        "token_list": ["/", "a", "bpe.model"],
    }
    assert (tmp_path / "stage" / "data" / "0-bpe.model").read_text() == "bpe.model"


def test_the_card_tells_scores_settings_and_versions(finished, tmp_path):
    text = (exported(finished("fairseq"), tmp_path / "model") / "README.md").read_text()
    assert "# small: cape, seed 3\n\nSpelled-out numbers" in text
    assert "A quick run" in text
    assert re.search(r"^loss:\n\n\|.*\|\n\|.*\|\n\| +\d+ \| nll_loss ", text, flags=re.M)
    assert re.search(r"^  max-global-shift: \d", text, flags=re.M)
    assert f"| torch | {torch.__version__.split('+')[0]}" in text
    assert "pip install 'cape-plugins[fairseq]'" in text
    assert str(ROOT) not in text


OTHER_FILES = {
    "a tensor": torch.ones(2),
    "weights alone": {"decoder.weight": torch.ones(2)},
    "no task": {"cfg": {"task": None}, "model": {}},
}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("no run", "is no finished run of cape-run"),
        ("not trained", "is no finished run of cape-run"),
        ("not tested", "is not tested"),
        ("folder exists", "exists: name a new folder"),
        ("no host", "fairseq is not installed: pip install 'cape-studies[fairseq]'"),
        ("no file", "checkpoint_last.pt is gone: run the same cape-run to train it anew"),
        ("a tensor", "checkpoint_last.pt cannot be read as a checkpoint of fairseq"),
        ("weights alone", "checkpoint_last.pt cannot be read as a checkpoint of fairseq"),
        ("no task", "checkpoint_last.pt cannot be read as a checkpoint of fairseq"),
        ("html", "checkpoint_last.pt cannot be read as a checkpoint of fairseq"),
        ("merges gone", "has words split by BPE, but there is no file of merges at"),
        ("data gone", "is gone, and with it the dictionaries"),
    ],
)
def test_what_cannot_be_exported_is_one_line(wrong, said, finished, tmp_path, monkeypatch, capsys):
    found, folder = finished("fairseq"), tmp_path / "model"
    copy = tmp_path / "runs" / found.name
    shutil.copytree(found, copy)
    if wrong == "no run":
        copy = copy.parent
    elif wrong == "not trained":
        (copy / "trained.yaml").unlink()
    elif wrong == "not tested":
        for path in copy.glob("*/scores.csv"):
            path.unlink()
    elif wrong == "folder exists":
        folder.mkdir()
    elif wrong == "no host":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    elif wrong == "no file":
        checkpoint(copy).unlink()
    elif wrong in OTHER_FILES:
        torch.save(OTHER_FILES[wrong], checkpoint(copy))
    elif wrong == "html":
        checkpoint(copy).write_text("<!DOCTYPE html>")
    elif wrong in ("data gone", "merges gone"):
        content = torch.load(checkpoint(copy))
        data = tmp_path / "data"
        if wrong == "merges gone":
            shutil.copytree(content["cfg"]["task"]["data"], data)
            (data / "dict.en.txt").write_text("tw@@ 3\no 3\n")
        content["cfg"]["task"]["data"] = str(data)
        torch.save(content, checkpoint(copy))
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        exported(copy, folder)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2
    assert line.startswith("cape-studies: error: ")
    assert said in line
    assert wrong == "folder exists" or not folder.exists()
    assert not list(tmp_path.glob(".export-*"))
