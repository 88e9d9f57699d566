"""What a study of a user's own data leaves open is set by these data."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from cape_studies.experiments.hosts import Machine, missing
from cape_studies.experiments.study import Study

#: of what is needed, the module of this package that knows it
KINDS = {"images": "images", "text": "sentences", "wavs": "recordings"}


def settle(study: Study, data: Mapping[str, Path], machine: Machine, out: Path) -> None:
    """Fill the study's open settings, where it is one of a user's data and these were given.

    Args:
        study: changed in place; what the user has set stays.
        data: what is needed → folder.
        machine: that will train.
        out: folder of the results.

    Raises:
        ValueError: the results would lie among the data, or these have a fault that is seen without
            reading all of them.
        ImportError: the host or a library that reads the data is not installed.
    """
    if study.answer is not None and (folder := data.get(study.answer.data)):
        if out.resolve().is_relative_to(folder):
            raise ValueError(f"--out {out} lies in the data, {folder}: choose another folder")
        name = KINDS[study.answer.data]
        for line in missing(study.host, [Path(__file__).with_name(f"{name}.py")]):
            raise ImportError(line)
        import_module(f"cape_studies.ask.{name}").settle(study, folder, machine)
