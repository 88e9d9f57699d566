"""Checkpoints of ``espnet2.bin.asr_train``: finding them, building and checking the models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.tasks.asr import ASRTask
from typeguard import TypeCheckError

import cape_plugins.espnet  # noqa: F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.command import said
from cape_plugins.evaluation.espnet import frontends
from cape_plugins.evaluation.espnet.decoding import Prepare
from cape_plugins.evaluation.espnet.testset import split_name
from cape_plugins.evaluation.espnet.transcripts import Transcripts
from cape_plugins.evaluation.options import once

BEST = "valid.*.best.pth"


@dataclass(frozen=True)
class Source:
    """Where a model is.

    Attributes:
        name: in the tables.
        config: config.yaml of its training.
        file: the .pth.
    """

    name: str
    config: Path
    file: Path


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode on the CPU.

    Attributes:
        source: where it came from.
        model: ESPnet's model.
        transcripts: its tokens.
        rate: sampling rate in Hz, None if nothing tells.
        prepare: ESPnet's preprocessing of audio in inference (speech_volume_normalize), as a
            function of an utterance's name and its data; None without.
        search: asr_inference's, of the same model; None: greedy CTC decoding.
    """

    source: Source
    model: ESPnetASRModel
    transcripts: Transcripts
    rate: int | None
    prepare: Prepare | None = None
    search: Any = None


def sources(given: Sequence[str], checkpoint_name: str | None) -> list[Source]:
    """Find the files of ``--model``.

    Args:
        given: NAME=PATH, or PATH, whose folder (or file) then gives the name. The path is a
            folder of ``asr_train --output_dir``, or a .pth with config.yaml beside.
        checkpoint_name: a file of the folders. Default: the one ``valid.*.best.pth``.

    Raises:
        ValueError: a name is given twice, a file is missing, or there are several best.
    """
    found = [_source(one, checkpoint_name) for one in given]
    names = [repr(source.name) for source in found]
    once(names, "--model", ": give names with --model NAME=PATH")
    return found


def _source(given: str, checkpoint_name: str | None) -> Source:
    name, path = split_name(given, "--model")
    if not path.exists():
        raise ValueError(f"--model {given}: no such file or folder: {path}")
    file = _best(path, checkpoint_name) if path.is_dir() else path
    config = file.parent / "config.yaml"
    if not config.is_file():
        raise ValueError(f"--model {given}: no config.yaml beside {file}, of asr_train's output")
    return Source(name, config, file)


def _best(folder: Path, checkpoint_name: str | None) -> Path:
    if checkpoint_name is not None and (folder / checkpoint_name).is_file():
        return folder / checkpoint_name
    found = {path.resolve(): path for path in sorted(folder.glob(BEST))}
    if checkpoint_name is not None or not found:
        have = ", ".join(sorted(p.name for p in folder.glob("*.pth"))) or "no .pth at all"
        wanted = checkpoint_name or BEST
        raise ValueError(f"{folder} has no {wanted}, it has {have}: choose with --checkpoint-name")
    if len(found) > 1:
        names = ", ".join(path.name for path in found.values())
        raise ValueError(f"{folder} has several {BEST}: choose with --checkpoint-name ({names})")
    return next(iter(found.values()))


def load(source: Source, search: Sequence[str] = ()) -> Loaded:
    """Build a model and load its weights.

    Args:
        source: where it is.
        search: options of asr_inference, NAME=VALUE; none: greedy CTC decoding.

    Raises:
        ValueError: it cannot be built, lacks weights or has others, has no CTC and gets no
            search, takes no audio, or the search does not have such options.
    """
    have = _keys(source.file)
    try:
        model, train_args = ASRTask.build_model_from_file(source.config, source.file, "cpu")
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        raise ValueError(f"{source.file} cannot be loaded: {said(error, 3)}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{source.config} is no YAML: {said(error, 3)}") from error
    try:
        _check_keys(have, set(model.state_dict()))  # ESPnet loads with strict=False
        if getattr(model, "ctc", None) is None and not search:
            raise ValueError("it has no CTC (ctc_weight: 0), so it needs --search")
        searching = _search(source, search) if search else None
        return Loaded(
            source,
            searching.asr_model if searching else model.eval(),
            Transcripts(train_args),
            frontends.rate_of(model, train_args),
            ASRTask.build_preprocess_fn(train_args, train=False),
            searching,
        )
    except ValueError as error:
        raise ValueError(f"{source.file}: {error}") from error


def _search(source: Source, given: Sequence[str]) -> Any:
    from espnet2.bin.asr_inference import Speech2Text

    parts = (one.partition("=") for one in given)
    options = {name: yaml.safe_load(value) for name, _, value in parts}
    try:
        return Speech2Text(source.config, source.file, **options)
    except (TypeError, TypeCheckError, NotImplementedError) as error:
        raise ValueError(f"--search {' '.join(given)}: {said(error, 3)}") from error


def _keys(file: Path) -> set[str]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=False)
        return set(state.get("module", state))
    except Exception as error:  # torch.load raises anything for what it cannot read
        raise ValueError(
            f"{file} is damaged, or no checkpoint of asr_train ({type(error).__name__}: "
            f"{said(error)}): copy it again, or choose another with --checkpoint-name"
        ) from error


def _check_keys(have: set[str], want: set[str]) -> None:
    mark = {"encoder.mark._extra_state"}  # of the variant, which older checkpoints lack
    have, want = have | mark, want | mark
    for keys, what in ((want - have, "lacks"), (have - want, "has, unlike config.yaml's model,")):
        if keys:
            raise ValueError(
                f"it {what} {len(keys)} weights, such as {min(keys)}: is it of another training?"
            )
