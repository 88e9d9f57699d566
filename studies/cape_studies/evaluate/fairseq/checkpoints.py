"""Finds the checkpoints that a command line names, and loads them by fairseq."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import overwrite_args_by_name

from cape_plugins.fairseq import PLAIN  # it registers, also where autoload is switched off
from cape_studies.command import named, said
from cape_studies.evaluate.fairseq.options import FairseqOptions

# checkpoint12.pt of epoch 12, checkpoint_12_34000.pt of update 34000 in it
NUMBERED = r"checkpoint_?(\d+)(?:_\d+)?\.pt"


def sources(arguments: Sequence[str], *, only_best: bool = False) -> list[tuple[str, list[str]]]:
    """The name of each training of ``--model``, and its checkpoints in the order of their epochs.

    Args:
        arguments: [NAME=]PATH of a checkpoint or a folder; without NAME it is PATH. Seeds may share
            a NAME.
        only_best: take ``checkpoint_best.pt`` in a folder. Default: all with a number, of an epoch
            or an update; if there are none, ``checkpoint_best.pt``.
    """
    found = []
    for argument in arguments:
        name, path = named(argument, "--model")
        files = [path]
        if Path(path).is_dir():
            epochs = [] if only_best else checkpoint_utils.checkpoint_paths(path, NUMBERED)[::-1]
            files = epochs or [f"{path}/checkpoint_best.pt"]
        found.append((name or path, files))
    return found


class Loaded(NamedTuple):
    """A checkpoint's model, in float32 on the CPU, in eval mode, and its task, with other data;
    under the name of its training."""

    name: str
    path: str
    model: Any
    task: Any


def load_model(name: str, path: str, options: FairseqOptions) -> Loaded:
    """Load a checkpoint.

    Raises:
        ValueError: the file cannot be read, does not fit the data, or was trained with other
            dictionaries.
    """
    try:
        torch.serialization.add_safe_globals(PLAIN)  # registration's, which timm's loading undoes
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
        cfg, state["args"] = state["cfg"], None  # args are from old checkpoints; cfg has them
        trained_on = Path(str(cfg.task.data).split(":")[0])
        overwrite_args_by_name(cfg, {"data": str(options.data), "eval_bleu": False})
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path], state=state)
    except Exception as error:  # for other files or data fairseq has errors of many types
        raise ValueError(f"{path} cannot be loaded with {options.data}: {said(error)}") from error
    # words must have the numbers that they had in training
    for language in (task.cfg.source_lang, task.cfg.target_lang):
        old, new = (folder / f"dict.{language}.txt" for folder in (trained_on, options.data))
        if old.is_file() and Dictionary.load(str(old)).symbols != Dictionary.load(str(new)).symbols:
            raise ValueError(
                f"{path} was trained with other dictionaries: {old} and {new} differ; binarise "
                f"with fairseq-preprocess --srcdict/--tgtdict from {trained_on}"
            )
    return Loaded(name, path, model.eval(), task)
