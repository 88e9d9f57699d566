"""Options of a command: a dataclass lists their names, types, defaults and help, once."""

# ruff: noqa: RUF009 - option() makes a field
import argparse
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

Kind = TypeVar("Kind", bound="Options")


def option(
    help: str = "",
    default: Any = MISSING,
    metavar: str | None = None,
    *,
    flags: Sequence[str] = (),
    least: int | None = None,
    **settings: Any,
) -> Any:
    """A field of :class:`Options`; its type tells how it is read: int, Sequence[int], bool, …

    Args:
        help: one line; the default is added, unless it is told there.
        default: without one the option is required.
        metavar: its value in the help. Default: N for integers, FILE for paths.
        flags: as they are typed. Default: ``--`` and the field's name.
        least: the smallest number that is allowed.
        settings: more of ``argparse.ArgumentParser.add_argument``'s.
    """
    if metavar is not None:
        settings["metavar"] = metavar
    about = {"help": help, "flags": flags, "least": least, "settings": settings}
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a command, checked when they are made: before any work.

    Attributes:
        groups: first field of a group → the group's heading in the help, in this order.

    Raises:
        ValueError: a value out of range, or what the subclass's :meth:`check` refuses.
    """

    groups: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        """Check what the fields declare, then what the subclass adds."""
        for each in fields(self):
            least, value = each.metadata["least"], getattr(self, each.name)
            for number in value if isinstance(value, list | tuple) else [value]:
                if least is not None and number is not None and not number >= least:
                    raise ValueError(f"{spelled(each.name)} must be ≥ {least}, got {number}")
        self.check()

    def check(self) -> None:
        """Raise ValueError for values that do not fit together; a subclass has its own."""

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser the options; returns it."""
        headed = {title: parser.add_argument_group(title) for title in cls.groups.values()}
        group: Any = parser
        for each in fields(cls):
            about = each.metadata
            if each.name in cls.groups:
                group = headed[cls.groups[each.name]]
            settings = {**_reading(each.type), "help": about["help"]}
            flags = about["flags"] or (spelled(each.name),)
            if flags[0].startswith("-"):
                settings |= {"dest": each.name, "required": each.default is MISSING}
            if each.default is not MISSING:
                settings["default"] = each.default
                settings["help"] = _with_default(about["help"], each.default)
            target = group if flags[0].startswith("-") else parser
            target.add_argument(*flags, **(settings | about["settings"]))
        return parser

    @classmethod
    def read(cls: type[Kind], given: argparse.Namespace) -> Kind:
        """The options that argparse found on a command line."""
        return cls(**{each.name: getattr(given, each.name) for each in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """What the commands share that run models."""

    groups: ClassVar[dict[str, str]] = {"attention_logn": "running", "out": "output"}

    attention_logn: Sequence[int] = option(
        "logits of self-attention × log N / log of this, N_train in tokens, for models that were "
        "trained without; several: each; 0: off (default: as trained)",
        (),
        least=0,
    )
    device: str | None = option("default: cuda if there is one, else cpu", None)
    workers: int = option("processes that load data", 0, least=0)
    amp: bool = option("mixed precision", False)
    out: str | None = option("of PREFIX.csv, PREFIX.md and the pictures", None, "PREFIX")
    csv: Path | None = option("instead of PREFIX.csv", None)
    markdown: Path | None = option("instead of PREFIX.md", None)
    items: Path | None = option("CSV of what each test item adds, for a bootstrap", None)
    overwrite: bool = option("replace files that are there, when the run is done", False)

    def __post_init__(self) -> None:
        """Check that no file is written over an input or another output."""
        super().__post_init__()
        if self.items is not None and getattr(self, "resume", False):
            raise ValueError("--items knows nothing of earlier rows: leave out --resume")
        if 1 in self.attention_logn:
            raise ValueError("--attention-logn takes tokens of a training sample, ≥ 2, or 0, got 1")
        once(self.attention_logn, "--attention-logn")
        outputs = [self.csv_path, self.markdown_path, getattr(self, "figure_path", None)]
        outputs.append(self.items)
        taken = {path.resolve(): name for name, path in self._inputs() if path.is_file()}
        for path in outputs:
            if path is not None and path.resolve() in taken:
                raise ValueError(
                    f"{path} would be written over {taken[path.resolve()]}: choose another name"
                )
            if path is not None:
                taken[path.resolve()] = "another output"

    def _inputs(self) -> Iterator[tuple[str, Path]]:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("out", "csv", "markdown", "figure", "items"):
                for one in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(one, str | Path):  # NAME=PATH too
                        yield spelled(each.name), Path(str(one).rpartition("=")[2])

    def place(self, given: Path | None, ending: str) -> Path | None:
        """The file of an option such as ``--csv``, else of ``--out``, if there is either."""
        return given or (Path(f"{self.out}{ending}") if self.out else None)

    def check_items(self, models: Sequence[str]) -> None:
        """Raise ValueError if items are asked for of more than one model, or of one in two ways."""
        ways = len(models) * len(self.logns)
        if self.items is not None and ways > 1:
            raise ValueError(f"--items are those of one model, got {ways}: run them apart")

    @property
    def logns(self) -> Sequence[int | None]:
        """Those of ``--attention-logn``; None is as trained."""
        return self.attention_logn or [None]

    def labels(self, model: str) -> dict[str, int | None]:
        """What a model is called under each of :attr:`logns`."""
        return {model if n is None else f"{model}+logn{n}": n for n in self.logns}

    @property
    def csv_path(self) -> Path | None:
        """Where the rows go."""
        return self.place(self.csv, ".csv")

    @property
    def markdown_path(self) -> Path | None:
        """Where the table goes."""
        return self.place(self.markdown, ".md")


def spelled(name: str) -> str:
    """A field's name as it is typed."""
    return f"--{name.replace('_', '-')}"


def named(given: str, option: str) -> tuple[str | None, str]:
    """NAME=PATH in two; None and the whole where there is no name, or such a path exists.

    Raises:
        ValueError: the name or the path is empty.
    """
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        return None, given
    if not name or not path:
        raise ValueError(f"{option} takes PATH or NAME=PATH, got {given!r}")
    return name, path


def once(values: Sequence[Any], option: str, hint: str = "") -> None:
    """Raise ValueError if a value comes twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{option} has {value} twice{hint}")


def _reading(kind: Any) -> dict[str, Any]:
    """How argparse reads a type."""
    if get_origin(kind) is UnionType:
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if kind is bool:
        return {"action": "store_true"}
    several = {"nargs": "+"} if get_args(kind) else {}
    kind = get_args(kind)[0] if several else kind
    shown = {int: {"metavar": "N"}, Path: {"metavar": "FILE"}}.get(kind, {})
    return {**several, **shown, "type": kind}


def _with_default(help: str, default: Any) -> str:
    if default in (None, False, (), "") or "default" in help:
        return help
    values = default if isinstance(default, tuple) else [default]
    shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{help} (default: {shown})" if help else f"default: {shown}"
