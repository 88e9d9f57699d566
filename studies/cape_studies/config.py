"""What a study may say: pydantic checks it.

Options are mappings in the host's own names and are given to its commands as they are. Strings in
them may hold places in braces: the names of needs and prepared folders, ``{recipe}``, its path, and

    {variant}, {seed}        of the training; {after}: the folder of the one that it starts from
    {out}                    in prepare: the folder to make
    {trained}, {checkpoint}  in evaluations: the folder that the host trained into, the file to test
    {csv}, {items}           in evaluations by a script: the CSVs to write

What the data decide is written by a preparation to ``facts.yaml`` in its folder, and stands in the
YAML as ``${facts:NAME}``. ``${oc.env:NAME}`` is refused, as a report shows all settings. Paths of
recipes and scripts are relative to the YAML, else to ``configs/studies``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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
from cape_studies.command import once, said
from cape_studies.hosts import Options
from cape_studies.settings import Answer, Report, known
from cape_studies.yamls import composed, folders, interpolations

Kind = TypeVar("Kind", bound=BaseModel)


def _without_null(parts: Any) -> Any:
    return {k: v for k, v in parts.items() if v is not None} if isinstance(parts, dict) else parts


def _file_name(name: str) -> str:
    if {"/", "\\"} & {*name}:
        raise ValueError(f"{name!r} is the name of a file or folder in OUT: leave out slashes")
    return name


#: Parts by name, which files and folders are named after.
Parts = Annotated[
    dict[Annotated[str, AfterValidator(_file_name)], Kind], BeforeValidator(_without_null)
]


def _inside(path: str) -> str:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"{path!r} must be in the folder of the training: leave out / and ..")
    return path


def _first(path: Path, info: ValidationInfo) -> Path:
    for folder in info.context or [Path()]:
        if (there := (folder / path).resolve()).is_file():
            return there
    raise ValueError(f"{path} does not exist")


#: A path that is looked for in the folders of the validation's context.
File = Annotated[Path, AfterValidator(_first)]


class Part(BaseModel):
    """A part of a study. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class Need(Part):
    """Data that the user brings: ``--data NAME=FOLDER``."""

    what: str  # what it is
    source: str = "yours"  # where it comes from
    layout: str = "the host reads it"  # how the folder is laid out, in words
    files: list[str] = []  # patterns in the folder: each must match something


class Prepare(Part):
    """A folder that a script or a module makes once for all runs; {NAME} is its path."""

    script: File | None = None  # a Python file
    module: str | None = None  # a module in place of the script, as for python -m
    arguments: list[str | int | float] = []  # words that come before the options
    options: Options = {}  # of the script: name → value
    facts: Options = {}  # _target_: a function of facts.yaml and of these, which gives the facts


class Variant(Part):
    """One row of the table: what differs from the study's options."""

    options: Options = {}  # of the host, which replace the study's: name → value
    recipe: File | None = None  # in place of the study's
    after: str | None = None  # start from the training of this variant with the same seed
    # evaluation → other options; null leaves one out
    evaluate: Annotated[dict[str, Options], BeforeValidator(_without_null)] = {}


class Evaluation(Part):
    """One call of cape-timm-eval, cape-fairseq-eval or cape-espnet-eval, or of a script.

    It writes a CSV with a row for each condition and metric: columns that tell the conditions
    apart, then metric, value, how (percent, mean, bleu, bleu_unsmoothed, number), items, weight.
    A script writes condition, metric, value, items.
    """

    command: str | None = None  # fairseq: bleu or loss of cape-fairseq-eval
    script: File | None = None  # a Python file in place of the host's evaluation
    options: Options = {}  # of the command or the script: name → value
    metrics: dict[str, Literal["higher", "lower"]] = Field(min_length=1)  # name → what is better
    condition: list[str] = []  # columns that name the condition; default: the host's
    ranges: list[int] = []  # [10, 20]: the condition is a number, in 1–10 and 11–20
    name: str | None = None  # the condition's name, if no column has it


class Study(Part):
    """The whole YAML."""

    title: str  # in one line
    host: str  # the host whose trainer is used: espnet, fairseq or timm
    protocol: str = ""  # what is done and what is expected, written before it runs
    cost: str = "not known"  # what a training costs, in words
    needs: Parts[Need] = {}  # data by name; null leaves one out
    prepare: Parts[Prepare] = {}  # folders by name, made in this order
    recipe: File | None = None  # a config file of the host; none: options alone
    trainer: File | None = None  # a script in place of the host's trainer
    #: the file to test in the folder of the training, "." for all
    checkpoint: Annotated[str, AfterValidator(_inside)] | None = None
    epochs: float | None = Field(None, gt=0)  # my_…: passes over the data; null: by their number
    group: str | None = None  # my_…: what finds the group of an item; groups are in one part
    options: Options = {}  # of the trainer: name → value; null leaves one out
    variants: Parts[Variant] = Field(min_length=1)  # by name
    run: list[str] = []  # variants to run; default: all
    seeds: list[int] = Field([0], min_length=1)  # every variant is trained with every seed
    evaluations: Parts[Evaluation] = Field(min_length=1)  # by name; null leaves one out
    report: Report = Field({}, validate_default=True)
    answer: Answer | None = None
    large: bool = False  # as large as in the paper: cape-run --list shows it last
    quick: dict[str, Any] = {}  # changes that --quick makes

    @model_validator(mode="after")
    def _names_fit(self) -> "Study":
        """Fill the defaults, and leave out variants that neither run nor are started from."""
        known("host", [self.host], hosts.NAMES)
        self.run = self.run or list(self.variants)
        others = set(self.run) - self.variants.keys()
        there = [*self.variants]
        if others and "{variant}" in str(self.options):  # which says what its options are
            there += hosts.variants(self.host)
            self.variants |= {name: Variant() for name in others.intersection(there)}
        known("run", self.run, there)
        once(self.run, "run")
        once(self.seeds, "seeds")
        for name, variant in self.variants.items():
            known(f"variants.{name}.evaluate", variant.evaluate, self.evaluations)
            known(f"variants.{name}.after", filter(None, [variant.after]), self.variants)
        kept = [*self.run]
        for name in kept:  # kept grows: what a variant starts from is kept too
            if (start := self.variants[name].after) and start not in kept:
                kept.append(start)
        about = self.report
        known("report.baseline", filter(None, [about.baseline]), self.variants)
        if about.baseline not in kept:  # where fewer run
            about.baseline = kept[0]
        self.variants = {name: self.variants[name] for name in kept}
        about.evaluation = about.evaluation or next(iter(self.evaluations))
        known("report.evaluation", [about.evaluation], self.evaluations)
        metrics = self.evaluations[about.evaluation].metrics
        about.metric = about.metric or next(iter(metrics))
        known("report.metric", [about.metric], metrics)
        about.y_label, about.title = about.y_label or about.metric, about.title or self.title
        for name in ("beyond", "by"):
            known(f"answer.{name}", getattr(self.answer, name, ()), self.evaluations)
        return self


def study_of(config: DictConfig, path: Path, facts: Mapping[str, Any]) -> Study:
    """Resolve and check a config.

    Args:
        config: of :func:`cape_studies.yamls.composed`.
        path: of its YAML.
        facts: those that preparations have written. One that lacks is ``<NAME>``, and null in
            ``prepare`` and ``answer``: an option that is left open is chosen by the preparation.

    Raises:
        ValueError: something is wrong; names the first fault.
    """

    def resolved(fact: Any) -> dict[str, Any]:
        with interpolations(fact):
            return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]

    try:
        content = resolved(lambda name: facts.get(name, f"<{name}>"))
        left_open = resolved(facts.get)
        content |= {name: left_open[name] for name in ("prepare", "answer") if name in left_open}
        return Study.model_validate(content, context=[path.parent, *folders()])
    except OmegaConfBaseException as error:
        raise ValueError(f"{path}: {said(error, None)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{one}." for one in first["loc"]).rstrip(".")
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {where}{': ' if where else ''}{message}") from error


def load(path: Path, overrides: Sequence[str] = (), quick: bool = False) -> Study:
    """A study whose facts are not known."""
    return study_of(composed(path, overrides, quick), path, {})
