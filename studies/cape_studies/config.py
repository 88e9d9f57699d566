"""A study, from its YAML: Hydra composes it, and it is checked here before anything runs.

Options are mappings in the host's own names and are given to its commands as they are. Strings in
them may hold ``{places}``: the names of needs and prepared folders, and those in :data:`PLACES`.
What the data decide is written by a preparation to ``facts.yaml`` in its folder, and stands in the
YAML as ``${facts:NAME}``. Paths of recipes and scripts are relative to the YAML, else to
``configs/studies``.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, TypeVar

import yaml
from hydra import compose, initialize_config_dir, version
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from cape_studies import hosts

Options = dict[str, Any]

#: What a string may hold in braces, beside the names of needs and prepared folders.
PLACES = {
    "recipe": "the recipe's path",
    "out": "in prepare: the folder to make",
    "seed": "the training's seed",
    "variant": "the variant's name",
    "trained": "in evaluations: the folder that the host trained into",
    "checkpoint": "in evaluations: the checkpoint to test",
    "after": "the folder of the training that this one starts from",
    "csv": "in evaluations by a script: the tidy CSV to write",
    "items": "in evaluations by a script: the CSV of single items to write",
}

Kind = TypeVar("Kind", bound=BaseModel)


def _without_null(parts: Any) -> Any:
    return {k: v for k, v in parts.items() if v is not None} if isinstance(parts, dict) else parts


Parts = Annotated[dict[str, Kind], BeforeValidator(_without_null)]


def _first(path: Path, info: ValidationInfo) -> Path:
    there = [(folder / path).resolve() for folder in info.context or [Path()]]
    return next((one for one in there if one.exists()), there[0])


def _is_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    return path


#: A path that is looked for in the folders of the validation's context.
File = Annotated[Path, AfterValidator(_first)]
Script = Annotated[Path, AfterValidator(_first), AfterValidator(_is_file)]


def _known_host(name: str) -> str:
    known("host", [name], hosts.NAMES)
    return name


class Part(BaseModel):
    """A part of a study. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class Need(Part):
    """Data that the user brings: ``--data NAME=FOLDER``."""

    what: str = Field(description="what it is")
    source: str = Field("yours", description="where it comes from")
    layout: str = Field("the host reads it", description="how the folder is laid out, in words")
    files: list[str] = Field([], description="patterns in the folder: each must match something")


class Prepare(Part):
    """A folder that a script or a module makes once for all runs; {NAME} is its path."""

    script: Script | None = Field(None, description="a Python file")
    module: str | None = Field(
        None, description="a module in place of the script, as for python -m"
    )
    arguments: list[str | int | float] = Field([], description="words that come before the options")
    options: Options = Field({}, description="options of the script: name → value")

    @model_validator(mode="after")
    def _one_program(self) -> "Prepare":
        if (self.script is None) == (self.module is None):
            raise ValueError("give either script or module")
        return self


class Variant(Part):
    """One row of the table: what differs from the study's options."""

    options: Options = Field(
        {}, description="options of the host, which replace the study's: name → value"
    )
    recipe: File | None = Field(None, description="recipe in place of the study's")
    after: str | None = Field(
        None, description="start from the training of this variant with the same seed"
    )
    evaluate: dict[str, Options | None] = Field(
        {}, description="evaluation → options that differ; null leaves it out"
    )
    trained_on: list[str] | None = Field(
        None, description="conditions seen in training, in place of the report's"
    )


class Evaluation(Part):
    """One call of cape-timm-eval, cape-fairseq-eval or cape-espnet-eval, or of a script.

    It writes a CSV with a row for each condition and metric: columns that tell the conditions
    apart, then metric, value, how (percent, mean, bleu, bleu_unsmoothed, number), items, weight.
    A script writes condition, metric, value, items.
    """

    command: str | None = Field(None, description="fairseq: bleu or loss of cape-fairseq-eval")
    script: Script | None = Field(
        None, description="a Python file in place of the host's evaluation"
    )
    options: Options = Field({}, description="options of the command or the script: name → value")
    metrics: dict[str, Literal["higher", "lower"]] = Field(description="name → which is better")
    condition: list[str] = Field(
        [], description="columns that name the condition; default: the host's"
    )
    ranges: list[int] = Field(
        [], description="[10, 20]: the condition is a number, in 1–10 and 11–20"
    )
    name: str | None = Field(None, description="the condition's name, if no column has it")


class Report(Part):
    """What cape-report shows."""

    baseline: str = Field("", description="variant to compare with; default: the first")
    evaluation: str = Field("", description="evaluation that is shown first; default: the first")
    metric: str = Field("", description="metric that is shown first; default: the first")
    x_label: str = Field(
        "", description="the figure's x label: what the conditions are, with the unit"
    )
    y_label: str = Field("", description="the figure's y label; default: the metric")
    title: str = Field("", description="the figure's title; default: the study's")
    trained_on: list[str] = Field([], description="conditions seen in training")


class Answer(Part):
    """For a study of a user's own data: the answer that its report begins with."""

    floor: str = Field("nopos", description="variant without positions, which others must beat")
    within: str = Field(description="words for the conditions seen in training")
    beyond: dict[str, str] = Field(description="evaluation → words for its other conditions")
    chance: float | None = Field(
        None, description="score of who always says the most frequent class, or nothing"
    )
    found: str | None = Field(None, description="what the data hold, in a sentence")


class Study(Part):
    """The whole YAML."""

    title: str = Field(description="title, in one line")
    host: Annotated[str, AfterValidator(_known_host)] = Field(
        description="the host whose trainer is used: espnet, fairseq or timm"
    )
    protocol: str = Field(
        "", description="what is done and what is expected, written before it runs"
    )
    cost: str = Field("not known", description="what a training costs, in words")
    disk_gb: float = Field(1.0, gt=0, description="disk that a run takes, about")
    needs: Parts[Need] = Field({}, description="data by name; null leaves one out")
    prepare: Parts[Prepare] = Field({}, description="folders by name, made in this order")
    recipe: File | None = Field(None, description="a config file of the host; none: options alone")
    trainer: Script | None = Field(None, description="a script in place of the host's trainer")
    checkpoint: str | None = Field(None, description="the file to test; default: the host's")
    epochs: float | None = Field(
        None, gt=0, description="my_…: passes over the data; null: as many as the data need"
    )
    options: Options = Field(
        {}, description="options of the trainer: name → value; null leaves one out"
    )
    variants: Parts[Variant] = Field(min_length=1, description="variants by name")
    run: list[str] = Field([], description="variants to run; default: all")
    seeds: list[int] = Field(
        [0], min_length=1, description="every variant is trained with every seed"
    )
    evaluations: Parts[Evaluation] = Field(
        min_length=1, description="evaluations by name; null leaves one out"
    )
    report: Report = Field({}, validate_default=True, description="what cape-report shows")
    answer: Answer | None = Field(
        None, description="for a user's own data: what the report's answer says"
    )
    quick: dict[str, Any] = Field({}, description="changes that --quick makes")

    @model_validator(mode="after")
    def _names_fit(self) -> "Study":
        for name in (*self.needs, *self.prepare):
            if not name.isidentifier() or name in PLACES:
                taken = ", ".join(PLACES)
                raise ValueError(f"{name!r} in needs or prepare must be a word other than {taken}")
        for name, variant in self.variants.items():
            known(f"variants.{name}.evaluate", variant.evaluate, self.evaluations)
            known(f"variants.{name}.after", filter(None, [variant.after]), self.variants)
        self.run = self.run or list(self.variants)
        others = set(self.run) - self.variants.keys()
        if others and "variant" in places_in(self.options):  # which say what its options are
            others &= set(hosts.variants(self.host))
            self.variants |= {name: Variant.model_validate({}) for name in others}
        known("run", self.run, self.variants)
        kept = [*self.run]
        for name in kept:  # kept grows: what a variant starts from is kept too
            if (start := self.variants[name].after) and start not in kept:
                kept.append(start)
        known("report.baseline", filter(None, [self.report.baseline]), self.variants)
        if self.report.baseline not in kept:  # where fewer run
            self.report.baseline = kept[0]
        self.variants = {name: self.variants[name] for name in kept}
        places = {*PLACES, *self.needs}
        for name, step in self.prepare.items():  # each may use the folders before it
            known(f"prepare.{name}", places_in(step.model_dump()), places)
            places.add(name)
        for part, value in self.model_dump(include={"options", "variants", "evaluations"}).items():
            known(part, places_in(value), places)
        if self.answer:
            known("answer.beyond", self.answer.beyond, self.evaluations)
        self._complete(self.report)
        return self

    def _complete(self, report: Report) -> None:
        """Fill the defaults of the report."""
        report.evaluation = report.evaluation or next(iter(self.evaluations))
        known("report.evaluation", [report.evaluation], self.evaluations)
        metrics = self.evaluations[report.evaluation].metrics
        report.metric = report.metric or next(iter(metrics), "")
        known("report.metric", [report.metric], metrics)
        report.y_label = report.y_label or report.metric
        report.title = report.title or self.title


def known(where: str, names: Iterable[str], there: Iterable[str]) -> None:
    """Raise ValueError for the first of the names that does not exist; it lists those that do."""
    for name in names:
        if name not in there:
            raise ValueError(f"{where}: no {name!r}; there is {', '.join(sorted(there))}")


def places_in(value: Any) -> set[str]:
    """Names in braces in all strings of nested lists and mappings, but not in keys."""
    if isinstance(value, str):
        return {name for _, name, _, _ in Formatter().parse(value) if name}
    parts = value.values() if isinstance(value, Mapping) else value
    return set().union(*map(places_in, parts)) if isinstance(value, list | Mapping) else set()


def merge(base: Options, over: Options) -> Options:
    """``base`` with the values of ``over``, mapping by mapping."""
    merged = OmegaConf.merge(OmegaConf.create(base), over)
    return OmegaConf.to_container(merged)  # type: ignore[return-value]


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file.

    Raises:
        ValueError: it cannot be read, or is not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping")
    return content


def one_line(error: BaseException) -> str:
    """What an error says, without its line ends."""
    return " ".join(str(error).split()) or type(error).__name__


def studies_of(path: Path) -> list[Path]:
    """The YAMLs of a set of studies, or the study's own."""
    names = read_yaml(path).get("studies")
    return [path.parent / f"{name}.yaml" for name in names] if isinstance(names, list) else [path]


def composed(path: Path, overrides: Sequence[str] = (), quick: bool = False) -> DictConfig:
    """The config that Hydra makes from a study's YAML, its defaults list and overrides.

    Names in the defaults list are looked for beside the YAML and in ``configs/studies``. Keys that
    every study has by default, such as ``run`` and ``seeds``, can be overridden in every study.

    Args:
        path: of the YAML.
        overrides: changes in Hydra's grammar: ``options.epochs=1``, ``+options.new=2``.
        quick: make the changes that the study lists under ``quick``, before the overrides.

    Raises:
        ValueError: it cannot be read or composed.
    """
    read_yaml(path)
    search = [f"hydra.searchpath=[{json.dumps(f'file://{folder}')}]" for folder in folders()]
    keys: dict[str, Any] = {"run": [], "seeds": [0], "options": {}, "report": {}, "disk_gb": 1.0}
    defaults = ["cape_study_keys", path.stem]
    store = ConfigStore.instance().store
    store("cape_study_keys", keys)

    def make(overrides: Sequence[str]) -> DictConfig:
        store("cape_study", {"defaults": [*defaults, "_self_"]})
        return compose("cape_study", overrides=[*search, *overrides])

    try:  # fairseq's own calls in this process set an older base, of which Hydra 1.3.8 warns
        with initialize_config_dir(str(path.resolve().parent), version_base="1.3"):
            if quick and (changes := make([]).get("quick")):
                store("cape_study_quick", changes)
                defaults.append("cape_study_quick")
            try:
                return make(overrides)
            except HydraException as error:
                if not overrides:
                    raise
                raise ValueError(f"{path}: {_no_key(error, make([]))}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {one_line(error)}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:  # a YAML that this one names is broken
        for other in sorted({*path.parent.rglob("*.yaml"), *names()}):
            read_yaml(other)
        raise ValueError(f"a YAML that {path} names: {one_line(error)}") from error
    finally:
        version.VersionBase.instance().setbase(version.__compat_version__)


def _no_key(error: HydraException, config: DictConfig) -> str:
    """What Hydra says; of a key that does not exist, the keys beside it, and how one is added."""
    said = re.match(r"Could not (?:override|delete from config.) '([^']+)'", str(error))
    if not said:
        return one_line(error).partition(" Config search path")[0]
    *above, key = said[1].split(".")
    there: Any = config
    for one in above:
        there = there.get(one) if isinstance(there, DictConfig) else None
    if not isinstance(there, DictConfig):
        return one_line(error)
    own = sorted(map(str, there))
    near = [key] if key in config else get_close_matches(key, own, n=1)
    like = f"is {near[0]} meant? " if near else ""
    where = ".".join(above) or "the study"
    adds = f"; +{said[1]}=… adds it" if above else ""
    return f"there is no {said[1]}: {like}{where} has {', '.join(own)}{adds}"


_OPEN = "prepare", "answer"  # where a fact that is not known is null


def study_of(config: DictConfig, path: Path, facts: Mapping[str, Any], complete: bool) -> Study:
    """Resolve and check a config.

    Args:
        config: of :func:`composed`.
        path: of its YAML.
        facts: those that preparations have written.
        complete: whether these are all. If they are not, one that lacks is ``<NAME>``, and null
            in ``prepare``: an option that is left open there is chosen by the preparation.

    Raises:
        ValueError: something is wrong, or a fact is missing; names the first fault.
    """

    def fact(name: str) -> Any:
        if complete:
            known("facts", [name], facts)
        return facts.get(name, f"<{name}>")

    try:
        OmegaConf.register_new_resolver("facts", fact, replace=True)
        content: Any = OmegaConf.to_container(config, resolve=True)
        OmegaConf.register_new_resolver("facts", facts.get, replace=True)
        if not complete:
            left_open: Any = OmegaConf.to_container(config, resolve=True)
            content |= {name: left_open[name] for name in _OPEN if name in left_open}
    except OmegaConfBaseException as error:
        raise ValueError(f"{path}: {one_line(error)}") from error
    try:
        return Study.model_validate(content, context=[path.parent, *folders()])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        where = f"{where}: " if where else ""
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {where}{message}{more}") from error


def load(path: Path, overrides: Sequence[str] = (), quick: bool = False) -> Study:
    """A study whose facts are not known."""
    return study_of(composed(path, overrides, quick), path, {}, complete=False)


def folders() -> list[Path]:
    """``configs/studies`` of this package's checkout, of the current folder, or of the wheel."""
    package = Path(__file__).resolve().parent
    roots = package.parents[1], Path.cwd(), package / "_files"
    there = [root / "configs" / "studies" for root in roots]
    return [folder for folder in there if folder.is_dir()][:1]


def names() -> list[Path]:
    """The YAMLs of all studies."""
    return sorted(path for folder in folders() for path in folder.glob("*.yaml"))


def find(name: str) -> Path:
    """The YAML of a study: a path, or a name in :func:`folders`.

    Raises:
        ValueError: there is none.
    """
    if name.endswith(".yaml") and Path(name).is_file():
        return Path(name)
    there = {path.stem: path for path in names()}
    if name not in there:
        near = get_close_matches(name, there)
        like = f"similar names are {', '.join(near)}; " if near else ""
        raise ValueError(
            f"no study {name!r} in configs/studies: {like}cape-run --list shows all. For a study "
            "of your own give the path of its NAME.yaml"
        )
    return there[name]
