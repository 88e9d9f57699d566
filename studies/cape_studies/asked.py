"""What a command line says of a study: cape-run and cape-report are told the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from cape_studies import hosts, yamls
from cape_studies.command import CommandOptions, Typed
from cape_studies.needs import Data, known_data, lacking
from cape_studies.plan import Plan


class StudyOptions(CommandOptions):
    """What cape-run and cape-report are told of a study."""

    study: Annotated[str | None, Typed(bare=True)] = Field(
        None, description="a name from cape-run --list, or a YAML"
    )
    overrides: Annotated[list[str], Typed(bare=True)] = Field(
        [], description="changes in Hydra's grammar: seeds=[0,1] options.epochs=1 ~needs.v2a"
    )
    data: Annotated[list[str], Typed(again="[NAME=]DIR")] = Field(
        [], description="a folder of data that the study needs; again for each"
    )
    out: Path = Field(Path("out"), description="folder of all results")
    quick: bool = Field(False, description="a tiny model and few updates, to see that it runs")
    gpus: NonNegativeInt = Field(0, description="GPUs for a run; 0: the CPU")
    timm_scripts: Path | None = Field(None, description="folder of timm's train.py")

    def plans(self, writes: bool = True) -> tuple[list[Plan], list[str]]:
        """Of each study of a set, or of the one; and what is missing of their data. ``writes``:
        whether anything is written to ``out``.

        Raises:
            ValueError: there is no such study, or a change does not fit.
        """
        if self.study is None:
            raise ValueError("which study? cape-run --list shows them")
        scripts = self.timm_scripts.resolve() if self.timm_scripts else None
        given: dict[str, Any] = {"quick": self.quick, "out": self.out.resolve(), "named": {}}
        given["machine"] = hosts.Machine(self.gpus, scripts)
        paths = yamls.studies_of(yamls.find(self.study))
        plans = [Plan(path, self.overrides, **given) for path in paths]
        needs = {name: need for one in plans for name, need in one.study.needs.items()}
        folders = known_data(self.data, needs)
        if problems := list(lacking(needs, folders)):
            return plans, problems
        where = given["out"]
        data = {name: Data.now(name, of, where if writes else None) for name, of in folders.items()}
        for plan in plans:
            plan.bring(data)
        return plans, []

    def words(self) -> Iterator[str]:
        """What to type for the same study."""
        yield from (str(self.study), *self.overrides)
        yield from (f"--data={one}" for one in self.data)
        names = {"out", "quick", "gpus", "timm_scripts"}
        given = self.model_dump(include=names, exclude_defaults=True)
        yield from hosts.words({name.replace("_", "-"): one for name, one in given.items()})
