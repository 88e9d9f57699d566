"""The keys of a study in docs/studies.md, made from the models: ``python tools/docs/keys.py``."""

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from cape_studies import hosts
from cape_studies.config import (
    PLACES,
    Answer,
    Evaluation,
    Need,
    Part,
    Prepare,
    Report,
    Study,
    Variant,
)

PARTS = Study, Need, Prepare, Variant, Evaluation, Report, Answer
MARKS = "<!-- keys: made by tools/docs/keys.py -->", "<!-- end of keys -->"


def keys() -> str:
    """A table for each part of a study, and one of the places."""
    lines: list[str] = []
    for part in PARTS:
        lines += [f"### {part.__name__}", "", " ".join((part.__doc__ or "").split()), ""]
        lines += ["| key | value | default | |", "|---|---|---|---|", *_rows(part), ""]
    lines += [
        "### Hosts",
        "",
        "| host | tested by default | condition by default |",
        "|---|---|---|",
    ]
    for name in hosts.NAMES:
        host = hosts.host(name)
        condition = ", ".join(host.CONDITION) or "all in one"
        lines.append(f"| {name} | {host.CHECKPOINT or 'the folder'} | {condition} |")
    lines += ["", "### Places", "", "| in braces | |", "|---|---|"]
    lines += [f"| `{{{name}}}` | {text} |" for name, text in PLACES.items()]
    return "\n".join(lines)


def _rows(part: type[Part]) -> list[str]:
    found = []
    for name, field in part.model_fields.items():
        about = field.description or ""
        default = "needed" if field.is_required() else _written(field.default)
        found.append(f"| `{name}` | {_kind(field.annotation)} | {default} | {about} |")
    return found


def _kind(kind: Any) -> str:
    """A type in the words of YAML."""
    inside = get_args(kind)
    if get_origin(kind) is Annotated:
        return _kind(inside[0])
    if get_origin(kind) is Literal:
        return " or ".join(f"`{one}`" for one in inside)
    if get_origin(kind) is UnionType:
        return " or ".join(_kind(one) for one in inside if one is not NoneType)
    if get_origin(kind) is list:
        return f"list of {_kind(inside[0])}"
    if get_origin(kind) is dict:
        return f"name → {_kind(inside[1])}"
    if isinstance(kind, type) and issubclass(kind, Part):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    words = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    return words.get(kind, "anything")


def _written(default: Any) -> str:
    return (
        ""
        if default is None or default in ("", [], {}) or isinstance(default, Part)
        else str(default)
    )


def page(text: str) -> str:
    """A page with its part between the marks made anew."""
    begin, end = map(re.escape, MARKS)
    made = "\n\n".join([MARKS[0], keys(), MARKS[1]])
    return re.sub(f"{begin}.*{end}", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "docs" / "studies.md"
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
