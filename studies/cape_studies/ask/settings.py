"""Fills the settings that a study of a user's own data leaves open, from these data."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from cape_studies.experiments.hosts import Machine, missing
from cape_studies.experiments.study import Study

#: the need that is the user's data → the module of this package for it
KINDS = {"images": "images", "text": "sentences", "wavs": "recordings"}


def settle(study: Study, data: Mapping[str, Path], machine: Machine, out: Path) -> None:
    """Fill the study's open settings, if it is about a user's data and these were given.

    Args:
        study: changed in place; settings that the user gave stay.
        data: name of a need → folder.
        machine: the one that will train.
        out: folder of the results.

    Raises:
        ValueError: the results would lie among the data; or the data have a fault that shows
            without reading all files.
        ImportError: the host, or a library that reads the data, is not installed.
    """
    if study.answer is not None and (folder := data.get(study.answer.data)):
        if out.resolve().is_relative_to(folder):
            raise ValueError(f"--out {out} lies in the data, {folder}: choose another folder")
        name = KINDS[study.answer.data]
        for line in missing(study.host, [Path(__file__).with_name(f"{name}.py")]):
            raise ImportError(line)
        import_module(f"cape_studies.ask.{name}").settle(study, folder, machine)
