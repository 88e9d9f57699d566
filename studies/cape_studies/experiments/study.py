"""A study, from its YAML: Hydra composes it, and it is checked here before anything runs.

Options are mappings in the host's own names and are given to its commands as they are. Strings in
them may hold ``{places}``: the names of needs and prepared folders, and those in :data:`PLACES`.
Paths of recipes and scripts are relative to the YAML, else to ``configs/studies``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, TypeVar

import yaml
from cape_plugins.text import read_text
from hydra import compose, initialize_config_dir, version
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

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


#: A path that is looked for in the folders of the validation's context.
File = Annotated[Path, AfterValidator(_first)]


class Part(BaseModel):
    """A part of a study. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid")


class Need(Part):
    """Data that the user brings: ``--data NAME=FOLDER``."""

    what: str = Field(description="what it is")
    source: str = Field("yours", description="where it comes from")
    layout: str = Field("the host reads it", description="how the folder is laid out, in words")
    files: list[str] = Field([], description="patterns in the folder: each must match something")


class Prepare(Part):
    """A folder that a script or a module makes once for all runs; {NAME} is its path."""

    script: File | None = Field(None, description="a Python file")
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
    script: File | None = Field(None, description="a Python file in place of the host's evaluation")
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

    data: Literal["images", "text", "wavs"] = Field(
        description="the need that is the user's data; options that are null are set from it"
    )
    floor: str = Field("nopos", description="variant without positions, which others must beat")
    within: str = Field(description="words for the conditions seen in training")
    beyond: dict[str, str] = Field(description="evaluation → words for its other conditions")
    chance: float | None = Field(
        None, description="written by cape-run: a score no better than this is near chance"
    )
    found: str = Field("", description="written by cape-run: what the data hold")
    steps: int | None = Field(None, description="written by cape-run: updates of a training")


class Taste(Part):
    """For a study with one training a variant: what the page of ``make demo`` says of it."""

    variant: str = Field(description="variant that is compared with the report's baseline")
    condition: str = Field(description="condition at which the two are compared")
    seen: str = Field(description="a sentence with the scores there, as {variant} and {baseline}")
    more: str = Field(description="a sentence on what studies with several trainings say")
    evidence: list[str] = Field(description="those studies")


class Study(Part):
    """The whole YAML."""

    title: str = Field(description="title, in one line")
    host: Literal["timm", "fairseq", "espnet"] = Field(description="the host whose trainer is used")
    protocol: str = Field(
        "", description="what is done and what is expected, written before it runs"
    )
    cost: str = Field("not known", description="what a training costs, in words")
    disk_gb: float = Field(1.0, gt=0, description="disk that a run takes, about")
    needs: Parts[Need] = Field({}, description="data by name; null leaves one out")
    prepare: Parts[Prepare] = Field({}, description="folders by name, made in this order")
    recipe: File | None = Field(None, description="a config file of the host; none: options alone")
    trainer: File | None = Field(None, description="a script in place of the host's trainer")
    checkpoint: str | None = Field(None, description="the file to test; default: the host's")
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
    taste: Taste | None = Field(None, description="for make demo: what its page says")
    quick: dict[str, Any] = Field({}, description="changes that --quick makes")
    quick_run: bool = Field(False, description="written by cape-run: whether --quick was given")
    runs: list[str] = Field([], description="written by cape-run: the runs of its last call")
    others: list[str] = Field(
        [], description="written by cape-run: runs of earlier calls with the study as it is"
    )
    call: str = Field("", description="written by cape-run: the command line of its last call")
    calls: int = Field(0, description="written by cape-run: the number of calls")
    prepared: list[str] = Field([], description="written by cape-run: what it prepared for them")

    _path: Path = PrivateAttr(Path())

    @property
    def path(self) -> Path:
        """The path of the YAML."""
        return self._path

    @property
    def name(self) -> str:
        """The study's name: that of its YAML."""
        return self.path.stem

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
        known("run", self.run, self.variants)
        kept = [*self.run]
        for name in kept:  # kept grows: what a variant starts from is kept too
            if (start := self.variants[name].after) and start not in kept:
                kept.append(start)
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
        if self.taste:
            known("taste.variant", [self.taste.variant], self.variants)
            known("taste.seen", places_in(self.taste.seen), {"variant", "baseline"})
        return self

    def _complete(self, report: Report) -> None:
        """Fill the defaults of the report."""
        report.baseline = report.baseline or next(iter(self.variants))
        report.evaluation = report.evaluation or next(iter(self.evaluations))
        known("report.baseline", [report.baseline], self.variants)
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
        content = yaml.safe_load(read_text(path))
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping")
    return content


def one_line(error: BaseException) -> str:
    """What an error says, without its line ends."""
    return " ".join(str(error).split()) or type(error).__name__


def composed(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The config that Hydra makes from a YAML, its defaults list and overrides.

    Names in the defaults list are looked for beside the YAML and in ``configs/studies``.

    Raises:
        ValueError: it cannot be read or composed.
    """
    read_yaml(path)
    search = [f"hydra.searchpath=[{json.dumps(f'file://{folder}')}]" for folder in folders()]
    try:  # fairseq's own calls in this process set an older base, of which Hydra 1.3.8 warns
        with initialize_config_dir(str(path.resolve().parent), version_base="1.3"):
            found = compose(path.stem, overrides=[*search, *overrides])
        return OmegaConf.to_container(found, resolve=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {one_line(error)}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:  # a YAML that this one names is broken
        for other in sorted({*path.parent.rglob("*.yaml"), *names()}):
            read_yaml(other)
        raise ValueError(f"a YAML that {path} names: {one_line(error)}") from error
    finally:
        version.VersionBase.instance().setbase(version.__compat_version__)


def load(path: Path, overrides: Sequence[str] = (), quick: bool = False) -> list[Study]:
    """Read and check a study, or all studies of a set.

    Args:
        path: of the YAML.
        overrides: changes in Hydra's grammar: ``options.epochs=1``, ``+options.new=2``.
        quick: make the changes that the study lists under ``quick``, before the overrides.

    Raises:
        ValueError: something is wrong; names the first fault.
    """
    content = composed(path)
    if isinstance(content.get("studies"), list):
        paths = [path.parent / f"{name}.yaml" for name in content["studies"]]
        return [one for each in paths for one in load(each, overrides, quick)]
    if quick and content.get("quick"):  # as the last config of the defaults list
        ConfigStore.instance().store("study", content["quick"], "quick_run", package="_global_")
        overrides = ["+quick_run=study", *overrides]
    study = _checked(composed(path, overrides) if overrides else content, path)
    study.quick_run = quick
    return [study]


def load_written(path: Path) -> Study:
    """A study, from a study.yaml that cape-run wrote.

    Raises:
        ValueError: it cannot be read, or is not a study.
    """
    return _checked(read_yaml(path), path)


def _checked(content: dict[str, Any], path: Path) -> Study:
    try:
        study = Study.model_validate(content, context=[path.parent, *folders()])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        where = f"{where}: " if where else ""
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {where}{message}{more}") from error
    study._path = path.resolve()
    return study


def folders() -> list[Path]:
    """``configs/studies`` of this package's checkout, of the current folder, or of the wheel."""
    package = Path(__file__).resolve().parents[1]
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
