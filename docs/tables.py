"""Fills the tables of PAGES and makes the pages of docs/results.

    cape-report out/digits --out report
    cp report/scores.csv docs/results/digits.csv
    cp report/scores-items.csv.xz docs/results/digits-items.csv.xz
    python docs/tables.py

A table stands between ``<!-- NAME -->`` and ``<!-- -->``. Its cells are means over trainings: of
three and more with half of Student's 95 % interval over them, of two with both. Differences, and
intervals over test items too where these are stored, are in docs/results/NAME.md.
"""

import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from cape_studies.experiments import report, report_figures, report_read, report_tables
from cape_studies.experiments.report_read import TRAININGS
from cape_studies.experiments.report_scores import Score, Scores, every, interval

HERE = Path(__file__).parent
PAGES = [HERE / name for name in ("../README.md", "positions.md", "results.md", "cost.md")]
KEYS = ["evaluation", "metric", "condition"]
# each a heading, an evaluation, its metric and a condition, or none for the mean over all of them
Columns = list[tuple[str, str, str, str]]
SIZES = ["8", "10", "12", "14", "16", "20", "24", "32", "48"]
GAMMA = ["1", "sqrt", "ratio"]  # the grid's extent in testing, of cifar10_tests
LENGTHS = ["3–6", "8–12", "16–24", "30–40"]


def sweep(evaluation: str, metric: str, conditions: Sequence[str], heading: str = "{}") -> Columns:
    """A column for each condition of an evaluation."""
    return [(heading.format(one), evaluation, metric, one) for one in conditions]


CIFAR10 = sweep("sizes", "top1", ["24", "28", "32", "36", "40", "48", "64", "96"])
CANVAS = sweep("centre", "top1", ["24", "32", "48", "96"], "middle, {}")
CANVAS += sweep("anywhere", "top1", ["24", "32", "48", "96"], "anywhere, {}")
MEAN = sweep("sizes", "top1", [""], "mean")  # over all sizes

# study: decimals and columns
STUDIES = {
    "band": (1, MEAN + sweep("sizes", "top1", SIZES)),
    "band_28": (1, MEAN + sweep("sizes", "top1", ["16", "20", "24", "28", "36", "44", "56"])),
    "band_48": (1, MEAN + sweep("sizes", "top1", ["24", "32", "40", "48", "64", "80"])),
    "band_cifar10": (1, MEAN + sweep("sizes", "top1", ["24", "28", "32", "40", "48", "64"])),
    "digit_images": (
        1,
        sweep("sizes", "top1", SIZES)
        + sweep("sizes_logn", "top1", ["48"], "48, log N")
        + sweep("centre", "top1", ["24"], "centre")
        + sweep("anywhere", "top1", ["24"], "anywhere"),
    ),
    "canvas": (1, sweep("shift", "top1", ["0", "4", "8", "12", "16", "corner"])),
    "digit_canvas": (1, sweep("shift", "top1", ["0", "1", "2", "3", "4", "corner"])),
    "cifar10": (1, CIFAR10),
    "backbones": (1, CANVAS),
    "backbones_table": (1, CANVAS),
    "cifar10_mixed": (1, CIFAR10),
    "cifar10_tests": (
        1,
        sweep("sizes", "top1", [f"{r} {gamma}" for r in (24, 48, 64, 96) for gamma in GAMMA])
        + sweep("sizes_logn", "top1", ["48", "64", "96"], "{}, log N"),
    ),
    "band_digits": (1, sweep("length", "wer", ["validation"])),
    "band_multi30k": (3, sweep("loss", "loss", ["validation"])),
    "digits": (1, sweep("length", "wer", LENGTHS)),
    "digits_settings": (1, sweep("length", "wer", LENGTHS)),
    "digits_unheard": (
        1,
        sweep("length", "wer", LENGTHS) + sweep("unheard", "wer", LENGTHS, "{}, unheard"),
    ),
    "digits_seq2seq": (
        1,
        sweep("length", "wer", LENGTHS) + sweep("joint", "wer", LENGTHS, "{}, CTC too"),
    ),
    "digits_unheard_hops": (
        1,
        sweep("hops", "wer", ["5", "6", "8", "10", "12", "16", "20"], "{} ms"),
    ),
    "multi30k_short": (
        2,
        sweep("bleu", "bleu", ["at most 12"], "BLEU, ≤ 12")
        + sweep("bleu_long", "bleu", ["more than 15"], "BLEU, > 15")
        + sweep("loss_long", "loss", ["1–13", "14–16", "17–20", "21–25", "26–50"], "loss {}"),
    ),
}
STACKS = ["1–20", "21–40", "41–100", "101–200", "201–300"]
STUDIES["multi30k"] = STUDIES["multi30k_joined"] = (
    2,
    sweep("bleu", "bleu", ["captions"], "BLEU")
    + sweep("bleu_stacked", "bleu", ["stacked"], "BLEU, stacks")
    + sweep("loss", "loss", ["captions"], "loss")
    + sweep("loss_stacked", "loss", STACKS, "loss {}"),
)

FROM = {"digits_unheard_hops": "digits_unheard"}  # tables that are not named as their scores

# the columns of the table of all variants: what each is in training and beyond it, by a study
OVERALL = [
    ("**images, 16** ↑", "digit_images", "sizes", "top1", "16"),
    ("32 ↑", "digit_images", "sizes", "top1", "32"),
    ("48 ↑", "digit_images", "sizes", "top1", "48"),
    ("**speech, 3–6** ↓", "digits", "length", "wer", "3–6"),
    ("16–24 ↓", "digits", "length", "wer", "16–24"),
    ("30–40 ↓", "digits", "length", "wer", "30–40"),
    ("**BLEU, ≤ 12** ↑", "multi30k_short", "bleu", "bleu", "at most 12"),
    ("> 15 ↑", "multi30k_short", "bleu_long", "bleu", "more than 15"),
]
#: the demo: host → its metric in words, the variants without and with CAPE, the conditions
DEMO = {
    "timm": ("top-1 accuracy (%) ↑", "rope", "cape_rope", ["0", "2", "4", "corner"]),
    "fairseq": ("numbers translated (%) ↑", "sinpos", "cape", ["8", "12", "16"]),
    "espnet": ("WER (%) ↓", "sinpos", "cape_rope", ["1–3 s", "6–12 s", "12–24 s"]),
}
SHORT = {"0", "corner", "8", "12", "1–3 s", "6–12 s"}  # README's
MODELS = {"vit_small": "ViT-S", "asr_12": "ASR", "wmt_base": "MT"}


def scores_of(study: str) -> pd.DataFrame:
    """What ``cape-report`` wrote, and all conditions once more as one without a name."""
    path = HERE / "results" / f"{FROM.get(study, study)}.csv"
    scores = pd.read_csv(path, dtype={"condition": str})
    return pd.concat([scores, scores.assign(condition="", trained_on=False)])


def means_of(scores: pd.DataFrame, *more: str) -> pd.Series:
    """Means by evaluation, metric, condition, variant and more; none where a score is missing."""
    groups = scores.groupby([*KEYS, "variant", *more])["value"]
    return groups.agg(lambda of: of.mean(skipna=False))


def of_study(study: str) -> str:
    """A row for each variant, in the order of training; in bold what training had."""
    decimals, columns = STUDIES[study]
    scores = scores_of(study)
    by_seed = means_of(scores, "seed")
    values = {key: list(of) for key, of in by_seed.groupby([*KEYS, "variant"])}
    seeds = scores.groupby("variant", sort=False)["seed"].nunique()
    trained = scores.groupby(KEYS)["trained_on"].first().astype(bool)
    rows = [
        [
            variant,
            str(n),
            *(spread(values.get((*key, variant), []), decimals) for _, *key in columns),
        ]
        for variant, n in seeds.items()
    ]
    heads = [f"**{head}**" if trained[tuple(key)] else head for head, *key in columns]
    return table(["", "seeds", *heads], rows)


def overall() -> str:
    """A row for each variant of the package: scores and cost in the three hosts."""
    cost = costs()
    scores = {study: means_of(scores_of(study)) for study in {study for _, study, *_ in OVERALL}}
    rows = []
    for variant in cost.index.unique("variant"):
        row = [variant]
        for _, study, *key in OVERALL:
            low = scores[study].get((*key, f"{variant}_low"))  # in images, where there is one
            found = scores[study].get((*key, variant)) if low is None else low
            row.append(cell(found, 1))
        for which in ("step", "memory", "parameters"):
            ratios = [cell(cost[which].get((variant, case)), 2) or "–" for case in MODELS]
            row.append(" / ".join(ratios))
        rows.append(row)
    heads = [
        f"{which}, {' / '.join(MODELS.values())}" for which in ("step", "memory", "parameters")
    ]
    return table(["", *(head for head, *_ in OVERALL), *heads], rows)


def costs() -> pd.DataFrame:
    """What ``benchmarks/variants.py`` wrote, by variant and case."""
    return pd.read_csv(HERE / "results" / "cost.csv").set_index(["variant", "case"])


def of_cost() -> str:
    """A row for each variant: step and memory of each model as multiples of nopos."""
    cost = costs()
    cases = cost.index.unique("case")
    rows = [
        [variant]
        + [
            cell(cost[which].get((variant, case)), 2)
            for case in cases
            for which in ("step", "memory")
        ]
        for variant in cost.index.unique("variant")
    ]
    heads = [f"{case}, {which}" for case in cases for which in ("step", "memory")]
    return table(["", *heads], rows)


def cell(value: float | None, decimals: int) -> str:
    """As text; nothing where nothing was measured."""
    return "" if value is None or pd.isna(value) else f"{value:.{decimals}f}"


def spread(values: Sequence[float], decimals: int) -> str:
    """The mean, of two trainings with both, from three on with half of the interval."""
    each = np.array(values)
    if len(each) < TRAININGS or np.isnan(each).any():
        lacking = frozenset(np.flatnonzero(np.isnan(each)))
        one = Score(each.mean(), pd.Series(each), (len(each),), lacking) if len(each) else None
        return report_tables.cell(one, decimals) if one else ""
    low, high, _ = interval([each])
    return f"{each.mean():.{decimals}f} ± {(high - low) / 2:.{decimals}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True) + "\n"


@cache
def demo(run: str) -> list[list[str]]:
    """A row for each condition of each host: the variant without CAPE beside that with it."""
    rows = []
    found = {one.study.host: one for one in report_read.studies([HERE / "results" / f"{run}.csv"])}
    for host, (metric, without, augmented, conditions) in DEMO.items():
        about = found[host].study.report
        scores = Scores(found[host], about.evaluation, about.metric)
        for condition in conditions:
            pair = [scores.found[variant, condition] for variant in (without, augmented)]
            less = report_tables.cell(scores.differences[augmented, condition], 1, "+")
            bold = f"**{condition}**" if (augmented, condition) in scores.seen else condition
            cells = [report_tables.cell(one, 1) for one in pair]
            rows.append([f"{host}, {metric}", bold, without, cells[0], augmented, cells[1], less])
    return rows


def of_demo(run: str = "demo", short: bool = False) -> str:
    """What matters of a run of the demo, in README in short."""
    heads = ["", "tested at", "without CAPE", "", "with CAPE", "", "difference"]
    return table(heads, [row for row in demo(run) if not short or row[1].strip("*") in SHORT])


def results() -> dict[Path, str]:
    """The pages of docs/results."""
    pages = {}
    for path in sorted((HERE / "results").glob("*.csv")):
        if path.stem != "cost":
            found = report_read.studies([path])
            pages[path.with_suffix(".md")] = "\n".join(map(page, found))
    return pages


def page(result: report_read.Result) -> str:
    """Of a study: the tables of every evaluation and metric."""
    shown = [table for scores in every(result) for table in report_tables.tables(scores)]
    return report.markdown(result, shown)


def pictures() -> None:
    """Draw the figures that positions.md and README show."""
    for name in ("digits", "digit_canvas", "canvas"):
        path = HERE / "results" / f"{name}.csv"
        (one,) = report_read.studies([path])
        scores = Scores(one, one.study.report.evaluation, one.study.report.metric)
        report_figures.draw(scores, path.with_suffix(".png"))


def filled(text: str) -> str:
    """The page with its tables anew.

    Raises:
        KeyError: a table of that name is not known.
    """

    def anew(match: re.Match[str]) -> str:
        name = match[1]
        own = {
            "cost": of_cost,
            "overall": overall,
            "demo": of_demo,
            "demo_short": partial(of_demo, short=True),
            "demo_again": partial(of_demo, "demo_again"),
        }
        body = own[name]() if name in own else of_study(name)
        return f"<!-- {name} -->\n{body}<!-- -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- -->", anew, text, flags=re.DOTALL)


if __name__ == "__main__":
    pictures()
    for path in PAGES:
        path.write_text(filled(path.read_text()))
    for path, text in results().items():
        path.write_text(text)
