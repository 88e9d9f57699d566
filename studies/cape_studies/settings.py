"""How scores are shown, and which answer is given: keys of a study, which cape-compare has too."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class Report(BaseModel):
    """What cape-report shows."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    baseline: str = ""  # variant to compare with; default: the first
    evaluation: str = ""  # the one that is shown first; default: the first
    metric: str = ""  # the one that is shown first; default: the first
    x_label: str = ""  # of the figure: what the conditions are, with the unit
    y_label: str = ""  # of the figure; default: the metric
    title: str = ""  # of the figure; default: the study's
    trained_on: list[str] = []  # conditions seen in training


class Answer(BaseModel):
    """For a study of a user's own data: the answer that its report begins with."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    floor: str = "nopos"  # variant without positions, which others must beat; "": none
    within: str  # words for the conditions seen in training
    beyond: dict[str, str]  # evaluation → words for its others; {condition}: one by one
    by: dict[str, str] = {}  # evaluation → words that follow both, where several test the same
    same_items: bool = False  # whether all conditions are tested on the same items
    chance: float | None = None  # score of who always says the most frequent class, or nothing
    found: str | None = None  # what the data hold, in a sentence
    size: list[str] = []  # changes of the study that make its models larger, as they are typed


def known(where: str, names: Iterable[str], there: Iterable[str]) -> None:
    """Raise ValueError for the first of the names that does not exist; it lists those that do."""
    for name in names:
        if name not in there:
            raise ValueError(f"{where}: no {name!r}; there is {', '.join(sorted({*there}))}")
