"""cape-timm-eval's checkpoints of each kind, and several of them in one CSV; numbers are in
test_by_hand.py."""

from pathlib import Path

import pytest
import torch

timm = pytest.importorskip("timm")

from cape_studies.evaluate.timm import loading  # noqa: E402
from cape_studies.evaluate.timm.options import TimmOptions  # noqa: E402


def load(path: Path | str, model: str | None = None, **kwargs) -> torch.nn.Module:
    options = TimmOptions(checkpoint=[str(path)], model=model, model_kwargs=kwargs, data=["x"])
    return loading.load(str(path), options, torch.device("cpu")).model


@pytest.mark.parametrize("kind", ["cape", "abspos"])
def test_plain_state_dicts_and_safetensors_give_the_same_model(kind, tmp_path, request):
    checkpoint = request.getfixturevalue(kind)
    expected = load(checkpoint)
    args = torch.load(checkpoint, weights_only=False)["args"]
    name, kwargs = args.model, {**args.model_kwargs, "num_classes": 10}
    torch.save(expected.state_dict(), tmp_path / "plain.pth")
    timm.models.save_for_hf(expected, str(tmp_path / "hub"), safe_serialization=True)
    x = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(0))
    for file in ("plain.pth", "hub/model.safetensors"):
        found = load(tmp_path / file, name, **kwargs)
        torch.testing.assert_close(found(x), expected(x))


def test_the_averaged_weights_of_train_py_are_tested_where_it_kept_them(cape, tmp_path):
    content = torch.load(cape, weights_only=False)
    weights = content["state_dict"]
    average = {**weights, "head.weight": weights["head.weight"] + 1}
    content["state_dict_ema"] = {f"module.{name}": value for name, value in average.items()}
    torch.save(content, tmp_path / "both.pth.tar")  # ModelEma's names; ModelEmaV3 has no prefix
    found = load(tmp_path / "both.pth.tar").state_dict()
    torch.testing.assert_close(found, average)


def test_several_models_folders_and_splits_make_one_csv_and_one_table(
    cape, abspos, data, run, capsys, tmp_path
):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for split in ("b", "a"):
            (tmp_path / folder / split).symlink_to(data)
    options = ("--data", tmp_path / "one", tmp_path / "two", "--split", "b", "a", "--crop-pct", 1)
    rows = run("-c", f"ours={cape}", abspos, *options, "--resolutions", 16)
    assert [row["model"] for row in rows] == ["ours"] * 8 + ["vit_tiny_patch16_224"] * 8
    about = "model checkpoint dataset split resolution bin moved crop_pct"
    about += " interpolation precision metric value how items weight"
    assert list(rows[0]) == about.split()
    assert (rows[0]["checkpoint"], rows[0]["precision"]) == (str(cape), "float32")
    assert [(row["dataset"], row["split"]) for row in rows[::2]] == [
        *((str(tmp_path / folder / split), split) for folder in ("one", "two") for split in "ba")
    ] * 2
    head, *lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 16
    # the others do not change
    assert head.split() == [*about.split()[:4], "metric", "value"]
