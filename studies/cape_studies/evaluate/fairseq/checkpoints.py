"""Finds the checkpoints that a command line names, and loads them by fairseq."""

import argparse
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import overwrite_args_by_name

import cape_plugins.fairseq  # noqa: F401 - registers, also where autoload is switched off
from cape_studies.command import said
from cape_studies.evaluate.fairseq.options import ModelOptions
from cape_studies.options import named, once

#: Types in fairseq's checkpoints that torch ≥ 2.6 refuses by default: the options of fairseq's own
#: Transformer, and the counts that ``--eval-bleu`` leaves.
PLAIN: list[Any] = [argparse.Namespace, np.ndarray, np.zeros(1).__reduce__()[0], np.dtype]
PLAIN += [type(np.dtype(name)) for name in ("int64", "float64")]

# checkpoint12.pt of epoch 12, checkpoint_12_34000.pt of update 34000 in it
_NUMBERED = r"checkpoint_?(\d+)(?:_\d+)?\.pt"


def sources(arguments: Sequence[str], *, only_best: bool = False) -> list[tuple[str, list[Path]]]:
    """The name of each training of ``--model``, and its checkpoints in the order of their epochs.

    Args:
        arguments: [NAME=]PATH of a checkpoint or a folder. Without NAME a folder has its own name,
            and a file has FOLDER/FILE. Seeds may share a NAME.
        only_best: take ``checkpoint_best.pt`` in a folder. Default: all checkpoints with a number
            in their name; if there are none, ``checkpoint*.pt``.

    Raises:
        ValueError: a file is missing, or two trainings without NAME would have one name.
    """
    found, unnamed = [], []
    for argument in arguments:
        name, given = named(argument, "--model")
        path = Path(given)
        files = [path]
        if path.is_dir():
            numbered = checkpoint_utils.checkpoint_paths(given, _NUMBERED)[::-1]
            files = list(map(Path, numbered)) or sorted(path.glob("checkpoint*.pt"))
        if (only_best and path.is_dir()) or not files:
            files = [path / "checkpoint_best.pt"]
        if missing := [file for file in files if not file.is_file()]:
            raise ValueError(f"no such checkpoint: {missing[0]}")
        if name is None:
            own = path.resolve()
            name = own.name if path.is_dir() else f"{own.parent.name}/{own.stem}"
            unnamed.append(name)
        found.append((name, files))
    once(unnamed, "--model", ": give each as NAME=PATH")
    return found


class Loaded(NamedTuple):
    """A checkpoint's model, in float32 on the CPU, in eval mode, and its task, with other data;
    under the name of its training."""

    name: str
    path: Path
    model: Any
    task: Any


def load_model(name: str, path: Path, options: ModelOptions) -> Loaded:
    """Load a checkpoint.

    Raises:
        ValueError: the file cannot be read, is no translation model, or does not fit the data.
    """
    try:
        with torch.serialization.safe_globals(PLAIN):
            state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        # args are from old checkpoints; fairseq has made cfg of them
        cfg, state["args"] = state["cfg"], None
        if "source_lang" not in (cfg.task or {}):
            raise ValueError(
                "it was not trained for translation (from a source to a target language)"
            )
        trained_on = str(getattr(cfg.task, "data", "")).split(":")[0]
        overwrite_args_by_name(cfg, {"data": str(options.data), "eval_bleu": False})
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    except Exception as error:  # for other files or data fairseq has errors of many types
        more = ""
        if isinstance(error, pickle.UnpicklingError):  # it may hold more than plain options
            more = "; if you trust it, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
        raise ValueError(
            f"{path} cannot be loaded with {options.data}: {said(error)}{more}"
        ) from error
    # words must have the numbers that they had in training
    for language in (task.cfg.source_lang, task.cfg.target_lang) if trained_on else ():
        old, new = (folder / f"dict.{language}.txt" for folder in (Path(trained_on), options.data))
        if old.is_file() and Dictionary.load(str(old)).symbols != Dictionary.load(str(new)).symbols:
            raise ValueError(
                f"{path} was trained with other dictionaries: {old} and {new} differ; binarise "
                f"with fairseq-preprocess --srcdict/--tgtdict from {trained_on}"
            )
    return Loaded(name, path, model.eval(), task)
