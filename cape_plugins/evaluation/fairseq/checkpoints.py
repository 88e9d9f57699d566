"""Which checkpoints a command line means, and how one is loaded."""

import argparse
import glob
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.data import Dictionary
from omegaconf import OmegaConf, open_dict

import cape_plugins.fairseq  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.command import said
from cape_plugins.evaluation.fairseq.testset import dictionary_path
from cape_plugins.evaluation.options import named

# checkpoint12.pt of epoch 12, checkpoint_12_34000.pt of update 34000 in it
_NUMBERED = re.compile(r"checkpoint_?(\d+)(?:_(\d+))?\.pt")


@dataclass(frozen=True)
class Source:
    """One training.

    Attributes:
        name: its label.
        candidates: its checkpoints, in the order of training where their names tell it.
        attention_logn: N_train of the test; None is as trained.
    """

    name: str
    candidates: tuple[Path, ...]
    attention_logn: int | None = None


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory.

    Attributes:
        model: on the CPU, in float32.
        task: that it was trained on, with the data of the evaluation.
        epoch: of training in which it was saved; None if not recorded.
        updates: of the optimizer before it was saved; None if not recorded.
    """

    model: Any
    task: Any
    epoch: int | None
    updates: int | None


def sources(
    arguments: Sequence[str],
    *,
    pattern: str | None = None,
    from_epoch: int | None = None,
    only_best: bool = False,
) -> list[Source]:
    """Read ``--model``: each ``PATH`` or ``NAME=PATH`` is one training.

    Args:
        arguments: a PATH is a checkpoint, a folder of checkpoints, or several checkpoints with
            commas between them or by a pattern such as ``run/checkpoint[5-9].pt``. Without a name,
            a folder's own is taken, or the folder's and the file's.
        pattern: of the files of a folder. Default: those with a number, ``checkpoint12.pt``, or
            if there are none ``checkpoint*.pt`` (the best and the last are mostly among them).
        from_epoch: leave out what a folder has of earlier epochs; the authors' en-de runs are
            compared from 50 on. Files without an epoch in their name are left out too.
        only_best: take ``checkpoint_best.pt`` of a folder.

    Raises:
        ValueError: files are missing, or two trainings would have the same name by default.
    """
    found: list[Source] = []
    unnamed: list[str] = []
    for argument in arguments:
        name, path = named(argument, "--model")
        if only_best and Path(path).is_dir():
            path = str(Path(path) / "checkpoint_best.pt")
        files = _files(path, pattern, from_epoch)
        if name is None:
            name = _default_name(Path(path), files, only_best)
            unnamed.append(name)
        found.append(Source(name, files))
    for name in unnamed:
        if [source.name for source in found].count(name) > 1:
            raise ValueError(f"several models would be called {name!r}: give each as NAME=PATH")
    return found


def epoch_of(path: Path) -> int | None:
    """The epoch in a checkpoint's name."""
    match = _NUMBERED.fullmatch(path.name)
    return int(match[1]) if match else None


def load(
    path: Path, data: Path, *, max_positions: int | None = None, attention_logn: int | None = None
) -> Loaded:
    """Load a checkpoint of fairseq on its own task, with other data.

    Args:
        path: the file.
        data: folder of binarised data with the dictionaries of the training.
        max_positions: instead of the longest source and target, in tokens, that the task and the
            model allow; impossible for models with a table of positions.
        attention_logn: instead of the checkpoint's.

    Raises:
        ValueError: it cannot be read, is no translation model, or does not fit the data.
    """
    state = _read(path)
    cfg = state["cfg"]
    if "source_lang" not in (cfg.task or {}):
        raise ValueError(f"{path} is of no translation task (source and target language)")
    if attention_logn is not None:
        if "pos" not in cfg.model:
            raise ValueError(f"{path} is no cape_transformer: leave out --attention-logn")
        _set(cfg.model, attention_logn=attention_logn)
    try:
        trained_on = getattr(cfg.task, "data", None)
        _set(cfg.task, data=str(data))
        if getattr(cfg.task, "eval_bleu", False):
            _set(cfg.task, eval_bleu=False)  # builds a generator and a tokeniser of its own
        if max_positions is not None:
            limits = {f"max_{side}_positions": max_positions for side in ("source", "target")}
            _set(cfg.task, **limits)
            _set(cfg.model, **limits)
        task = tasks.setup_task(cfg.task)
        _check_dictionaries(path, state, task, data, trained_on)
        epoch, updates = _progress(state)  # gone when the model has been built
        models, _ = checkpoint_utils.load_model_ensemble([str(path)], task=task, state=state)
    except FileNotFoundError as error:
        raise ValueError(f"{path} with {data}: {error}") from error
    except (RuntimeError, AssertionError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be loaded: {said(error, 2)}") from error
    (model,) = models
    if not hasattr(model, "encoder") or not hasattr(model, "decoder"):
        raise ValueError(f"{path} is no translation model (an encoder and a decoder)")
    for module in model.modules():
        # fairseq 0.12.2's own layers; their fast path fails on torch ≥ 1.13
        if hasattr(module, "can_use_fastpath"):
            module.can_use_fastpath = False
    return Loaded(model.eval(), task, epoch_of(path) or epoch, updates)


def _read(path: Path) -> dict[str, Any]:
    try:
        # in the checkpoints of fairseq's own Transformer, which torch ≥ 2.6 refuses else
        with torch.serialization.safe_globals([argparse.Namespace]):
            state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} cannot be read, or holds more than weights and plain options; if you trust "
            "it, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
        ) from error
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no checkpoint of fairseq: {said(error)}") from error
    if state.get("args") is not None:  # before fairseq 0.10.2
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        state["cfg"], state["args"] = convert_namespace_to_omegaconf(state["args"]), None
    if state.get("cfg") is None or "model" not in state:
        raise ValueError(f"{path} is no checkpoint of fairseq: it has no options or no weights")
    return state


def _set(options: Any, **values: Any) -> None:
    if not OmegaConf.is_config(options):
        vars(options).update(values)
        return
    with open_dict(options):
        for name, value in values.items():
            options[name] = value


def _check_dictionaries(
    path: Path, state: dict[str, Any], task: Any, data: Path, trained_on: str | None
) -> None:
    """The numbers of the words must be those of the training."""
    for side, given in (
        ("encoder", getattr(task, "source_dictionary", None)),
        ("decoder", getattr(task, "target_dictionary", None)),
    ):
        weight = state["model"].get(f"{side}.embed_tokens.weight")
        if given is not None and weight is not None and len(weight) != len(given):
            raise ValueError(
                f"{path} was trained with other dictionaries: its {side} has {len(weight)} words, "
                f"the dictionary in {data} has {len(given)}"
            )
    if not trained_on:
        return
    before = Path(str(trained_on).split(":")[0])
    for language in (task.cfg.source_lang, task.cfg.target_lang):
        old, new = dictionary_path(before, language), dictionary_path(data, language)
        if not old.is_file() or old.resolve() == new.resolve():
            continue
        if Dictionary.load(str(old)).symbols != Dictionary.load(str(new)).symbols:
            raise ValueError(
                f"{path} was trained with other dictionaries: {old} and {new} differ; binarise "
                f"with fairseq-preprocess --srcdict/--tgtdict from {before}"
            )


def _progress(state: dict[str, Any]) -> tuple[int | None, int | None]:
    """Epoch and updates that were done when a checkpoint was saved, None if not recorded."""
    iterator = (state.get("extra_state") or {}).get("train_iterator") or {}
    epoch = iterator.get("epoch")
    if epoch is not None:  # at the end of an epoch fairseq notes the beginning of the next
        epoch = int(epoch) - (not iterator.get("iterations_in_epoch", 0))
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    return epoch, None if updates is None else int(updates)


def _files(path: str, pattern: str | None, from_epoch: int | None) -> tuple[Path, ...]:
    if Path(path).is_dir():
        return _in_folder(Path(path), pattern or "checkpoint*.pt", pattern is None, from_epoch)
    files: list[Path] = []
    for piece in [path] if Path(path).exists() else path.split(","):
        matches = [piece] if Path(piece).exists() else sorted(glob.glob(piece))
        if not matches:
            raise ValueError(f"no such checkpoint: {piece}")
        files += map(Path, matches)
    if folders := [file for file in files if file.is_dir()]:
        raise ValueError(f"{folders[0]} is a folder: give it as a model of its own")
    return tuple(sorted(dict.fromkeys(files), key=_order))


def _in_folder(
    folder: Path, pattern: str, numbered: bool, from_epoch: int | None
) -> tuple[Path, ...]:
    """Checkpoints of a folder, ``numbered`` ones alone if there are any."""
    there = [path for path in folder.glob(pattern) if path.is_file()]
    if not there:
        raise ValueError(f"no checkpoints {pattern} in {folder}")
    epochs = {path: epoch_of(path) or 0 for path in there}
    least = from_epoch or int(numbered and any(epochs.values()))
    found = [path for path in there if epochs[path] >= least]
    if not found:
        last = max(epochs.values())
        raise ValueError(
            f"no checkpoint of epoch {from_epoch} or later in {folder}: "
            + (f"the last is of epoch {last}" if last else "no name has an epoch in it")
        )
    return tuple(sorted(found, key=_order))


def _order(path: Path) -> tuple[float, float, str]:
    match = _NUMBERED.fullmatch(path.name)
    if not match:
        return float("inf"), 0.0, str(path)
    return int(match[1]), float(match[2] or "inf"), str(path)


def _default_name(path: Path, files: Sequence[Path], only_best: bool) -> str:
    if path.is_dir():
        return path.resolve().name
    file = files[0].resolve()
    if len(files) > 1 or (only_best and file.name == "checkpoint_best.pt"):
        return file.parent.name
    return f"{file.parent.name}/{file.stem}"
