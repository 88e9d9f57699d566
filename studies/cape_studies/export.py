"""``cape-studies export``: a finished run as a folder that no longer needs its study."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from tyro.conf import Positional, Suppress, subcommand

from cape_studies import command, hosts, process
from cape_studies.config import read_yaml
from cape_studies.model_card import model_card
from cape_studies.options import Options


class ExportOptions(Options):
    """A finished run of cape-run as a folder that its host loads, with a model card.

    timm: config.json and model.safetensors, for timm.create_model and for transformers. fairseq:
    model.pt, dictionaries and the merges of BPE. ESPnet: model.zip, made by espnet2.bin.pack.
    """

    run: Positional[Path] = Field(description="the run's folder, out/runs/VARIANT-seedN-DIGEST")
    folder: Positional[Path] = Field(description="the folder to make")
    bpe_codes: Path | None = Field(
        None, description="fairseq: the codes of BPE; none: the file codes beside the data"
    )
    license: str = Field("mit", description="the weights' licence, by its name on model hubs")


def main(argv: Sequence[str] | None = None) -> None:
    """``cape-studies``; ends with status 2 and one line on stderr if something is wrong."""
    kind = Annotated[ExportOptions, subcommand("export")] | Annotated[None, Suppress]
    command.main("cape-studies", kind, lambda options: print(export(options)), argv)


def export(options: ExportOptions) -> Path:
    """Write the folder and return its path; if that fails, no folder is left.

    Raises:
        ValueError: RUN is no run or not finished, FOLDER exists, or the checkpoint cannot be read.
        ImportError: the host is not installed.
    """
    run, folder = options.run.resolve(), options.folder.resolve()
    for needed in (run / "config.yaml", run / "trained.yaml"):
        if not needed.is_file():
            raise ValueError(
                f"{run} is no finished run of cape-run: {needed} is missing. Give the folder that "
                "cape-run wrote, out/runs/VARIANT-seedN-DIGEST"
            )
    if not [*run.glob("*/scores.csv")]:
        raise ValueError(f"{run} is not tested: run the same cape-run to finish it")
    if folder.exists():
        raise ValueError(f"{folder} exists: name a new folder")
    config = read_yaml(run / "config.yaml")
    host = config["host"]
    if advice := hosts.missing(host):
        raise ImportError(advice)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as parent:
        made = Path(parent) / folder.name
        made.mkdir()
        card = model_card(run, config, options.license)
        (made / "README.md").write_text(card, encoding="utf-8")
        checkpoint = _checkpoint(run / "train" / config["checkpoint"], host)
        if host == "fairseq":
            _fairseq(checkpoint, made, options.bpe_codes)
        else:
            {"timm": _timm, "espnet": _espnet}[host](checkpoint, made)
        for file in made.iterdir():  # safetensors makes its file readable for the user alone
            file.chmod(made.stat().st_mode & 0o666)
        made.rename(folder)
    return folder


def _checkpoint(file: Path, host: str) -> Path:
    """The checkpoint that the study tests."""
    if host == "espnet":
        from cape_studies.evaluate.espnet.models import sources

        (file,) = sources([f"model={file}"]).values()
    if not file.is_file():
        raise ValueError(f"{file} is gone: run the same cape-run to train it anew")
    return file


def _timm(checkpoint: Path, folder: Path) -> None:
    from timm.models import save_for_hf

    from cape_studies.evaluate.timm.loading import load
    from cape_studies.evaluate.timm.options import TimmOptions

    plain = TimmOptions.model_construct(checkpoint=[str(checkpoint)])
    loaded = load(str(checkpoint), plain, torch.device("cpu"))
    save_for_hf(loaded.model, str(folder), data_config=loaded.config, safe_serialization=True)
    path = folder / "config.json"
    content = json.loads(path.read_text("utf-8"))
    # timm reads it outside model_args; transformers 5.23 fails if it stands in both
    content.get("model_args", {}).pop("num_classes", None)
    content["pretrained_cfg"].pop("license", None)  # README.md has the weights' own
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _fairseq(checkpoint: Path, folder: Path, codes: Path | None) -> None:
    from fairseq.data.data_utils import infer_language_pair

    from cape_studies.evaluate.fairseq.checkpoints import PLAIN

    try:
        with torch.serialization.safe_globals(PLAIN):
            content = torch.load(checkpoint, map_location="cpu")
        task = dict(content["cfg"]["task"])
    except Exception as error:  # for other files torch and Python raise errors of many types
        raise ValueError(
            f"{checkpoint} cannot be read as a checkpoint of fairseq ≥ 0.12: {command.said(error)}"
        ) from error
    content["cfg"]["task"] = task
    if "source_lang" not in task:
        raise ValueError(f"{checkpoint} is of {task['_name']}: only translation is exported")
    data = Path(task["data"].split(":")[0])
    if not data.is_dir():
        raise ValueError(
            f"{data} is gone, and with it the dictionaries: run cape-run to prepare it anew"
        )
    if None in (task["source_lang"], task["target_lang"]):
        task["source_lang"], task["target_lang"] = infer_language_pair(str(data))
    codes = codes or data.parent / "codes"
    for dictionary in data.glob("dict.*.txt"):
        shutil.copy(dictionary, folder)
        if "@@ " in dictionary.read_text("utf-8") and not codes.is_file():
            raise ValueError(
                f"{dictionary} has words split by BPE, but there is no file of merges at {codes}: "
                "give --bpe-codes FILE"
            )
    if codes.is_file():
        shutil.copy(codes, folder / "bpecodes")  # the name that from_pretrained looks for
        bpe = {"_name": "subword_nmt", "bpe_codes": "bpecodes", "bpe_separator": "@@"}
        content["cfg"]["bpe"] = bpe
    content["last_optimizer_state"] = None  # two thirds of the file; only a training needs it
    content["extra_state"] = {"train_iterator": content["extra_state"]["train_iterator"]}
    torch.save(content, folder / "model.pt")


def _espnet(checkpoint: Path, folder: Path) -> None:
    config = read_yaml(checkpoint.parent / "config.yaml")
    if (bpe := config.get("bpemodel")) and not Path(bpe).is_file():
        raise ValueError(f"{bpe} is gone, and with it the tokens: run cape-run to prepare it anew")
    with tempfile.TemporaryDirectory() as place:
        stage = Path(place)
        (stage / "data").mkdir()
        (stage / "exp").mkdir()
        process.write(stage / "exp" / "config.yaml", _with_files(config, stage))
        shutil.copy(checkpoint, stage / "exp" / "model.pth")
        shutil.copy(folder / "README.md", stage)
        pack = [sys.executable, "-m", "espnet2.bin.pack", "asr"]
        pack += ["--outpath", str(folder / "model.zip")]
        pack += ["--asr_train_config", "exp/config.yaml", "--asr_model_file", "exp/model.pth"]
        for file in ("README.md", *sorted((stage / "data").iterdir())):
            pack += ["--option", str(file)]
        subprocess.run(pack, cwd=stage, check=True, stdout=subprocess.DEVNULL)


_DATA = ("shape_file", "data_path_and_name_and_type")
_TRAINING = {"config", "init_param", "output_dir"}  # only a training reads these
_TRAINING |= {f"{part}_{kind}" for part in ("train", "valid") for kind in _DATA}


def _with_files(value: Any, stage: Path) -> Any:
    """A config without the keys that only a training reads; its files are copied to ``data``."""
    if isinstance(value, dict):
        return {k: _with_files(one, stage) for k, one in value.items() if k not in _TRAINING}
    if isinstance(value, list):
        return [_with_files(one, stage) for one in value]
    if not isinstance(value, str) or not Path(value).is_absolute() or not Path(value).is_file():
        return value
    name = f"data/{len(list((stage / 'data').iterdir()))}-{Path(value).name}"
    shutil.copy(value, stage / name)
    return name
