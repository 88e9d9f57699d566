"""What is compared: tidy scores, what each test item adds to them, and how they are shown.

This and what is made of it (:mod:`.compare`, :mod:`.answer`, :mod:`.tables`, :mod:`.figure`,
:mod:`.page`) knows nothing of how scores come about.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cape_studies.items import PARTS, STATS, made
from cape_studies.settings import Answer, Report, known

TIDY = [
    *("study", "host", "variant", "seed", "evaluation", "condition", "metric", "value"),
    *("higher_is_better", "trained_on", "items", "how"),
]
#: columns that name a score; an item's has ``item`` and ``group`` too
SCORE = ["variant", "seed", "evaluation", "condition", "metric"]
NO_ITEMS = pd.DataFrame(columns=[*SCORE, "item", "group"])


@dataclass(frozen=True)
class Result:
    """The scores of one study.

    Attributes:
        name, title: of the study; the title is one line.
        scores: tidy rows, with the columns of ``TIDY`` but for study and host.
        items: what each test item adds to a score; empty where that is not stored. ``group`` is the
            speaker, video, document or patient whose the item is; where it is empty the item stands
            alone.
        variants: in the order of tables.
        report, answer: how they are shown, and which answer is given.
        chance: who has the score that the answer calls chance, in words.
        weights: variant → whose trainings these are, or go on from; seeds of two variants with the
            same are pairs.
        notes: sentences that the report shows.
        told: paragraphs of the page.
        details: title → text as it is, which the page folds.
        typed: variant → its settings, as a user of the host types them.
        next: variant → lines that say how to go on with it.
    """

    name: str
    title: str
    scores: pd.DataFrame
    items: pd.DataFrame
    variants: Sequence[str]
    report: Report
    answer: Answer | None = None
    chance: str = ""
    weights: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    told: Sequence[str] = ()
    details: dict[str, str] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    next: dict[str, list[str]] = field(default_factory=dict)


def read(path: Path, columns: Sequence[str] = (), strict: bool = False) -> pd.DataFrame:
    """A CSV, compressed or not. A value that is empty or not finite becomes NaN.

    Raises:
        ValueError: it cannot be read, or lacks one of the columns; or, if ``strict``, a value is
            text. Names the file.
    """
    words = "model", "checkpoint", "variant", "condition", "metric", "how", "item", "group"
    types: dict[Any, Any] = dict.fromkeys(words, str)
    empty: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}  # "nan" may be a name
    try:
        rows = pd.read_csv(path, dtype=types, low_memory=False, encoding="utf-8-sig", **empty)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    known(f"columns of {path}", columns, rows)
    for name in rows.columns.intersection(["value", "weight", *STATS]):
        numbers = pd.to_numeric(rows[name], errors="coerce")
        text = numbers.isna() & rows[name].notna() & (rows[name].astype(str).str.lower() != "nan")
        if strict and text.any():
            at = f"{path}: row {text.argmax() + 2}"
            raise ValueError(f"{at}: {name} is {rows[name][text].iat[0]!r}, which is no number")
        rows[name] = numbers.replace([np.inf, -np.inf], np.nan)
    return rows


def check(scores: pd.DataFrame, items: pd.DataFrame) -> None:
    """Compare scores with what their items make.

    Raises:
        ValueError: they are not the same; names the first.
    """
    values = scores.set_index(SCORE)["value"].dropna()
    for key, of in items.groupby(SCORE, sort=False):
        how = of["how"].iat[0]
        score = made(how, of[PARTS[how]].to_numpy(float).sum(axis=0))
        value = values.get(key, score)
        if not math.isclose(score, value, rel_tol=1e-3, abs_tol=1e-3):
            about = " ".join(str(part) for part in key if part != "")
            raise ValueError(f"{about} is {value:g}, its items make {score:g}")
