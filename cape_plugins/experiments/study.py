"""A study as its YAML tells it, checked before anything runs.

Options are mappings in the host's own names and are given to its commands as they are; strings in
them may hold ``{places}``: what is needed and what is prepared goes by its name, the rest by
:data:`PLACES`. Paths of recipes and scripts are relative to the YAML.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

Options = dict[str, Any]

#: What a string may hold in braces, beside the names of what is needed and prepared.
PLACES = {
    "recipe": "the recipe's path",
    "out": "in prepare: the folder to make",
    "seed": "of the training",
    "variant": "its name",
    "trained": "in evaluations: the folder that the host trained into",
    "checkpoint": "in evaluations: the file in it to test",
    "after": "the folder of the training that this one starts from",
    "csv": "in evaluations by a script: the tidy CSV to write",
    "items": "the same: the CSV of single items to write",
}

_PLACES = ", ".join(PLACES)


class Part(BaseModel):
    """Of a study; a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid")


Kind = TypeVar("Kind", bound=Part)
File = Annotated[Path, AfterValidator(lambda path, info: (info.context / path).resolve())]


class Need(Part):
    """Data that the user brings: ``--data NAME=FOLDER``."""

    what: str
    source: str = Field(description="where it comes from")
    layout: str = Field(description="of the folder, in words")
    files: list[str] = Field([], description="patterns in the folder: each must match something")


class Prepare(Part):
    """A folder made once for all runs, by a script or a module; its name is the folder's place."""

    script: File | None = None
    module: str | None = None
    arguments: list[str | int | float] = Field([], description="words, before the options")
    options: Options = {}

    @model_validator(mode="after")
    def _one_program(self) -> "Prepare":
        if (self.script is None) == (self.module is None):
            raise ValueError("give either script or module")
        return self


class Variant(Part):
    """One row of the table: what differs from the study's options."""

    options: Options = {}
    recipe: File | None = None
    after: str | None = Field(None, description="start from this variant's training, same seed")
    evaluate: dict[str, Options | None] = Field(
        {}, description="evaluation → options that differ; null leaves it out"
    )
    trained_on: list[str] | None = Field(None, description="instead of the report's")


class Evaluation(Part):
    """One call of cape-timm-eval, cape-fairseq-eval or cape-espnet-eval, or of a script.

    Its CSV becomes scores: ``metrics`` are columns, ``condition`` the columns that tell the rows
    apart; rows of the same condition are averaged by ``weight``. A script writes tidy rows itself:
    condition, metric, value, items.
    """

    command: str | None = Field(
        None, description="of cape-fairseq-eval: bleu, loss; 'training': the training's own metrics"
    )
    script: File | None = None
    options: Options = {}
    metrics: dict[str, Literal["higher", "lower"]] = Field(description="name → which is better")
    condition: list[str] = Field([], description="default: the host's, see hosts.py")
    where: dict[str, str | int | float] = Field({}, description="column → value of rows to keep")
    ranges: list[int] = Field([], description="last values: conditions are ranges of a number")
    weight: str | None = None
    name: str | None = Field(None, description="the condition's, where no column tells it")


class PaperRow(Part):
    """A number of the paper, to stand beside ours."""

    condition: str
    variant: str
    value: float
    source: str = Field(description="'Table 3'")
    spread: float | None = Field(None, description="the paper's, over seeds")
    evaluation: str | None = Field(None, description="default: the report's")
    metric: str | None = Field(None, description="default: the report's")


class Report(Part):
    """What cape-report shows."""

    baseline: str = Field(description="variant that the others are compared with")
    evaluation: str
    metric: str
    x_label: str = Field(description="of the figure: what the conditions are, with the unit")
    y_label: str
    title: str
    trained_on: list[str] = Field([], description="conditions seen in training")
    paper: list[PaperRow] = []


class Study(Part):
    """The whole YAML."""

    title: str
    host: Literal["timm", "fairseq", "espnet"]
    protocol: str = Field(description="what is done and expected, written before it runs")
    cost: str
    disk_gb: float = Field(1.0, gt=0, description="that a run takes, about")
    needs: dict[str, Need] = {}
    prepare: dict[str, Prepare] = {}
    recipe: File | None = Field(None, description="the host's own; none: options alone")
    trainer: File | None = Field(None, description="a script in place of the host's trainer")
    checkpoint: str | None = Field(None, description="file to test; default: see hosts.py")
    options: Options = {}
    variants: dict[str, Variant] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    evaluations: dict[str, Evaluation] = Field(min_length=1)
    report: Report
    quick: dict[str, Any] = Field({}, description="changes for --quick: to see that it runs")
    runs: list[str] = Field([], description="written by cape-run: folders of this study's runs")

    _path: Path = PrivateAttr(Path())

    @property
    def path(self) -> Path:
        """Of the YAML."""
        return self._path

    @property
    def name(self) -> str:
        """That of the file."""
        return self.path.stem

    @model_validator(mode="after")
    def _names_fit(self) -> "Study":
        for name in (*self.needs, *self.prepare):
            if not name.isidentifier() or name in PLACES:
                raise ValueError(f"{name!r} of needs or prepare must be a word, none of {_PLACES}")
        for name, variant in self.variants.items():
            known(f"variants.{name}.evaluate", variant.evaluate, self.evaluations)
            known(f"variants.{name}.after", [variant.after] if variant.after else [], self.variants)
        known("report.baseline", [self.report.baseline], self.variants)
        known("report.evaluation", [self.report.evaluation], self.evaluations)
        metrics = self.evaluations[self.report.evaluation].metrics
        known("report.metric", [self.report.metric], metrics)
        places = {*PLACES, *self.needs}
        for name, step in self.prepare.items():  # each may use those before it
            known(f"prepare.{name}", places_in(step.model_dump()), places)
            places.add(name)
        for part, value in self.model_dump(include={"options", "variants", "evaluations"}).items():
            known(part, places_in(value), places)
        return self


class StudySet(Part):
    """Several studies run and shown together."""

    title: str
    studies: list[str] = Field(min_length=1, description="names of YAMLs beside this one")


def known(where: str, names: Iterable[str], there: Iterable[str]) -> None:
    """Raise ValueError, with what there is, for the first name that there is not."""
    for name in names:
        if name not in there:
            raise ValueError(f"{where}: no {name!r}; there is {', '.join(sorted(there))}")


def places_in(value: Any) -> set[str]:
    """Names in braces in all strings of nested lists and mappings, keys aside."""
    if isinstance(value, str):
        return {name for _, name, _, _ in Formatter().parse(value) if name}
    parts = value.values() if isinstance(value, Mapping) else value
    return set().union(*map(places_in, parts)) if isinstance(value, list | Mapping) else set()


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``, mapping by mapping; null takes a key away.

    Where there is none it stays null: a variant of a study that extends another may leave out an
    evaluation.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping | None):
            merged[key] = merge(old or {}, value)
        elif value is None and key in merged:
            del merged[key]
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file over the one that it ``extends``, if it does: all its variants or those ``only``.

    Raises:
        ValueError: it cannot be read, or is no mapping; a variant of ``only`` is not in the other.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping")
    extends, only = content.pop("extends", None), content.pop("only", None)
    base = read_yaml(path.parent / extends) if extends else {}
    if only is not None:
        if not isinstance(only, list):
            raise ValueError(f"{path}: only: must list variants of {extends}, got {only!r}")
        variants = base.get("variants", {})
        known(f"{path}: only", only, variants)
        base["variants"] = {name: variants[name] for name in only}
    return merge(base, content)


def load(path: Path, changes: Sequence[str] = (), quick: bool = False) -> list[Study]:
    """Read and check a study, or the several that a set names.

    Args:
        path: the YAML.
        changes: ``key=value`` each, the key's parts with dots between them, the value as in YAML.
        quick: with the changes that the study lists for this.

    Raises:
        ValueError: names the first thing that is wrong.
    """
    content = read_yaml(path)
    if "studies" in content:
        names = _checked(StudySet, content, path).studies
        return [one for n in names for one in load(path.parent / f"{n}.yaml", changes, quick)]
    if quick:
        content = merge(content, content.get("quick") or {})
    for change in changes:
        key, equals, value = change.partition("=")
        try:
            tree: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            equals = ""
        if not key or not equals:
            raise ValueError(f"--set takes KEY=VALUE, the value as in YAML, got {change!r}")
        for part in reversed(key.split(".")):
            tree = {part: tree}
        content = merge(content, tree)
    study = _checked(Study, content, path)
    study._path = path.resolve()
    return [study]


def _checked(kind: type[Kind], content: dict[str, Any], path: Path) -> Kind:
    try:
        return kind.model_validate(content, context=path.parent)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {where}{message}{more}") from error


def names() -> list[Path]:
    """The YAMLs in ``configs/studies`` of the checkout that this package or the shell is in."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if found := sorted((root / "configs" / "studies").glob("*.yaml")):
            return found
    return []


def find(name: str) -> Path:
    """The YAML of a study: a path, or a name in a checkout.

    Raises:
        ValueError: there is none; lists those that there are.
    """
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        return Path(name)
    there = {path.stem: path for path in names()}
    if not there:
        raise ValueError(f"no study {name!r}: names need a checkout, give the path of a YAML")
    known("STUDY", [name], there)
    return there[name]
