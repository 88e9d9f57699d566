"""What a preparation of a user's data leaves: ``facts.yaml`` and ``groups.csv``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

GROUPS = "groups.csv"


def write(out: Path, **facts: Any) -> None:
    """Write ``out/facts.yaml``, which the study's YAML reads as ``${facts:NAME}``, and print the
    fact ``found``, a sentence on what the data hold."""
    text = yaml.safe_dump(facts, allow_unicode=True, sort_keys=False, width=100)
    (out / "facts.yaml").write_text(text, encoding="utf-8")
    print(facts["found"], flush=True)


def write_groups(out: Path, groups: Iterable[Mapping[str, str]]) -> None:
    """Write ``out/groups.csv``, the group of each test item, as the evaluation names it.

    Args:
        out: folder of the preparation.
        groups: ``item`` and ``group``, and ``condition`` where an item is another in each.
    """
    pd.DataFrame(groups).to_csv(out / GROUPS, index=False)


def grouped(items: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The items of an evaluation with the column ``group``, if a preparation has written groups."""
    if not (folder / GROUPS).exists():
        return items
    groups = pd.read_csv(folder / GROUPS, dtype=str, keep_default_na=False)
    same = [name for name in groups if name != "group"]
    return items.astype(dict.fromkeys(same, str)).merge(groups, how="left", on=same)


def time(seconds: float) -> str:
    """Two digits, in the unit that fits: ``0.38 s``, ``35 s``, ``4.2 min``, ``12 h``."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{_two(seconds / length)} {unit}"
    return f"{_two(seconds)} s"


def _two(number: float) -> str:
    two = float(f"{number:.2g}")
    return f"{two:,.0f}" if two >= 10 else f"{two:g}"
