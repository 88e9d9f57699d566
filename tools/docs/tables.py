"""Fills the numbers and tables of PAGES and makes the pages of studies/results.

    cape-report digits --data recordings=DIR --write report
    cp report/scores.csv studies/results/digits.csv
    cp report/scores-items.csv.xz studies/results/digits-items.csv.xz
    python tools/docs/tables.py

docs/answer.md and docs/answers/my_images.json are made of docs/answers/my_images.csv.

A table stands between ``<!-- NAME -->`` and ``<!-- -->``, a number between ``<!--=STUDY:EVALUATION:
VARIANT:CONDITION-->`` and ``<!--/-->``; VARIANT or CONDITION may be a difference, A−B with a minus
sign, and a test by BLEU has parts (PARTS_OF_BLEU), as in precision_of_bleu. A page of
studies/results begins with what is read from it, which is written by hand between ``<!-- read -->``
and ``<!-- /read -->`` and stays; its numbers are filled too.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import pandas as pd
from tabulate import tabulate

from cape_plugins.variants import names
from cape_studies import config, figure, report
from cape_studies import tables as shown_tables
from cape_studies.answer import BRACKETS, of_ranges, sentences
from cape_studies.compare import Scores, every
from cape_studies.evaluate.output import made
from cape_studies.results import NO_ITEMS, Result
from cape_studies.scores import PARTS, read
from cape_studies.stats import ITEMS

ROOT = Path(__file__).parents[2]
HERE = ROOT / "docs"
RESULTS = ROOT / "studies" / "results"
MEASURED = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *(ROOT / "integrations").glob("*/README.md")]
PAGES += [HERE / name for name in ("answer.md", "results.md", "cost.md")]
ANSWER = HERE / "answers" / "my_images.json"  # beside its CSV

#: README's table: a situation and its metric; its data and study; the evaluation, condition and
#: name of what is tested as in training, and of what is tested beyond
SITUATIONS = [
    (
        "objects elsewhere, top-1 % ↑",
        "handwritten digits",
        "digit_canvas_long",
        ("shift", "0", "middle"),
        ("shift", "corner", "corner"),
    ),
    (
        "images of other sizes, top-1 % ↑",
        "CIFAR-10",
        "cifar10_sizes",
        ("sizes", "32", "32 pixels"),
        ("sizes", "64", "64"),
    ),
    (
        "longer sentences, BLEU ↑",
        "captions",
        "multi30k_short",
        ("bleu", "at most 12", "≤ 12 tokens"),
        ("bleu_long", "more than 15", "> 15"),
    ),
    (
        "longer recordings, WER % ↓",
        "spoken digits, CTC",
        "digits_rope",
        ("length", "3–6", "1–5 s"),
        ("length", "30–40", "13–26 s"),
    ),
]
#: its rows: what is typed → what studies call it, the first that a study has
TYPED = {
    "`nopos`: no positions": ["nopos"],
    "`abspos`: a learned table, timm's default": ["abspos"],
    "`sinpos`: like fairseq's default; timm: `sinpos_low`": ["sinpos_low", "sinpos"],
    "timm's own `vit_small_patch16_rope_224`": ["timm_rope"],
    "`cape`; timm: `cape_low`": ["cape_low", "cape"],
    "timm: `cape_low`, `max_global_shift=0`": ["cape_low_shift0"],
    "`rope`; timm: `ropepos`": ["rope"],
    '`ropepos`, `class_token=False, global_pool="avg"`': ["rope_gap"],
    "`ropepos`, objects moved in training": ["rope_moved"],
    "`cape_rope`; timm: `max_global_shift=1.0`": ["cape_rope"],
    "`alibi`": ["alibi"],
    "`relpos`; ESPnet: `relpos_context: 2.5`": ["relpos_2.5s", "relpos"],
    "`random_rope`": ["random_rope"],
}
FIGURE = {"cape_rope", "rope", "rope_gap", "rope_moved", "nopos"}  # of objects that move
#: rows of benchmarks/results/intervals.csv that results.md shows
SIMULATED = [
    "a score",
    "a score, of other test items, ± half the spread",
    "one pair",
    "one pair, one spreads 5 times as much",
    "all pairs of 3",
    "all pairs of 7",
]
CAPTIONS = {"cape", "sinpos", "alibi", "relpos", "rope", "random_rope", "abspos", "nopos"}
WORDS = [0, 8, 12, 16, 20, 31]  # of a caption's reference, the last of each part
LENGTHS = [f"{least + 1}–{most}" for least, most in pairwise(WORDS)]
SEEN = {*LENGTHS[:2], "at most 12"}
#: of BLEU: n-gram precision, what is left without the penalty for brevity; words for 100 of the
#: reference, by which that penalty is
PARTS_OF_BLEU = {
    "precision": lambda items: {"stats_1": 0.0},
    "written": lambda items: {
        "how": "mean",
        "value": 100 * items["stats_0"],
        "weight": items["stats_1"],
    },
}


def stored(path: Path) -> list[Result]:
    """The studies in a scores.csv that cape-report wrote, under another name."""
    beside = path.with_name(f"{path.stem}-items.csv.xz")
    items = read(beside) if beside.exists() else NO_ITEMS.assign(study="")
    note = f"{path.name}: single test items are not stored, so that intervals"
    found = []
    for name, scores in read(path).groupby("study", sort=False):
        study = config.load(config.find(str(name)))
        for variant in scores["variant"].unique():  # one that the study has no more
            study.variants.setdefault(variant, config.Variant())
        mine = items[items["study"] == name]
        notes = [] if len(mine) else [f"{note} are for other trainings on the same items."]
        found.append(Result(study, scores, mine, notes))
    return found


@cache
def studies(name: str) -> list[Result]:
    """Those of studies/results/NAME.csv."""
    return stored(RESULTS / f"{name}.csv")


@cache
def scores_of(name: str, evaluation: str) -> Scores:
    """Of one evaluation, by its first metric; of captions also PARTS_OF_BLEU."""
    (one,) = studies(name)
    part, _, test = evaluation.partition("_of_")
    if part in PARTS_OF_BLEU:
        items = one.items[(one.items["metric"] == "bleu") & (one.items["evaluation"] == test)]
        return of_items(one, items.assign(**PARTS_OF_BLEU[part](items)), evaluation)
    rows = one.scores[one.scores["evaluation"] == evaluation]
    about = one.study.evaluations.get(evaluation)  # none: the study has it no more
    return Scores(one, evaluation, next(iter(about.metrics if about else rows["metric"])))


def of_items(one: Result, items: pd.DataFrame, name: str) -> Scores:
    """Of BLEU's items under other conditions or with other statistics."""
    (how,) = items["how"].unique()
    items = items.assign(evaluation=name)
    sums = items.groupby(["condition", "variant", "seed"], sort=False)[PARTS[how]].sum()
    rows = sums.apply(lambda of: made(how, of.tolist()), axis=1).rename("value").reset_index()
    rows = rows.assign(evaluation=name, metric="bleu", how=how, higher_is_better=True)
    rows = rows.assign(trained_on=rows["condition"].isin(SEEN))
    return Scores(replace(one, scores=rows, items=items), name, "bleu")


@cache
def number(of: str, items: bool = False) -> str:
    """A score or a difference with its interval: ``canvas:shift:cape_rope−rope:corner``.

    ``step:vit_small:rope`` is the time of a training step on a GPU, see :func:`steps`, and
    ``stock:memory:alibi`` one of COSTS.

    Args:
        of: which.
        items: with its ±, the standard error by the choice of test items.

    Raises:
        KeyError: there is no such score or step.
    """
    if of.startswith("step:"):
        _, case, variant = of.split(":")
        return cell(steps().set_index(["case", "variant"]).at[(case, variant), "step"], 2)
    if of.startswith("stock:"):
        _, what, variant = of.split(":")
        return beside_stock(what, variant)
    study, evaluation, variant, condition = of.split(":")
    scores = scores_of(study, evaluation)
    (one, *other), (at, *less) = variant.split("−"), condition.split("−")
    digits = 2 if scores.metric == "loss" else 1
    differs = bool(other or less)
    found = scores.found[one, at]
    if differs:
        found = scores.difference(one, (other or [one])[0], at, (less or [at])[0])
    if not items:
        found = found._replace(items=math.nan)
    return shown_tables.cell(found, digits, "+" if differs else "")


def of_scores() -> str:
    """Each variant's scores in four situations, as in training and beyond; the good ones bold."""
    heads, tested, pages, rows, columns = [""], ["tested on"], ["data"], [], []
    for situation, data, study, *tests in SITUATIONS:
        heads += [situation, ""]
        pages += [f"[{data}](studies/results/{study}.md)", ""]
        for evaluation, condition, name in tests:
            tested.append(name)
            columns.append(column(scores_of(study, evaluation), condition))
    for typed in TYPED:
        row = [shown.get(typed, "") for shown in columns]
        if any(row):
            rows.append([typed, *row])
    trainings = ["trainings of each", *(shown["trainings"] for shown in columns)]
    noise = ["noise", *(shown["noise"] for shown in columns)]
    return table(heads, [tested, *rows, trainings, noise, pages])


def column(scores: Scores, condition: str) -> dict[str, str]:
    """What is typed → its score; the best bold, and what differs from it neither significantly
    nor by more than the noise.

    Variants without an interval are left out. ``noise`` is half of Welch's 95 % interval of a
    difference from the best, the median over the others; ``trainings`` how many each variant has.
    """
    shown = {}
    for typed, called in TYPED.items():
        found = {name: scores.found.get((name, condition)) for name in called}
        if has := [name for name, one in found.items() if one and one.known]:
            shown[typed] = has[0]
    means = {name: scores.found[name, condition].value for name in shown.values()}
    best = (max if scores.higher else min)(means, key=lambda name: means[name])
    apart = {name: scores.difference(name, best, condition) for name in means if name != best}
    noise = median((one.high - one.low) / 2 for one in apart.values())
    good = {best}
    for name, one in apart.items():
        if not one.differs() and abs(one.value) <= noise:
            good.add(name)
    cells = {
        typed: f"**{means[name]:.1f}**" if name in good else f"{means[name]:.1f}"
        for typed, name in shown.items()
    }
    trainings = sorted({len(scores.values[name, condition]) for name in means})
    of = "–".join(map(str, dict.fromkeys([trainings[0], trainings[-1]])))
    return {**cells, "trainings": of, "noise": f"{noise:.1f}"}


#: rows of a table of ESPnet's Conformer, as digits_conformer names them, and what else is typed
CONFORMERS = [
    *("rel_pos", "nopos", "sinpos", "cape", "rope", "cape_rope", "alibi"),
    *("relpos", "relpos_2.5s"),
]
CONFORMERS_TYPED = {
    "rel_pos": "ESPnet's own `rel_pos`",
    "relpos_2.5s": "`relpos`, `relpos_context: 2.5`",
}
#: name of a cost → the file in benchmarks/results, its column
COSTS = {
    "step": ("steps_h100.csv", "step"),
    "memory": ("steps_h100.csv", "memory"),
    "recognition": ("recognition_h100.csv", "step"),
}


def beside_stock(what: str, variant: str) -> str:
    """One of COSTS at 30 s, as a multiple of ESPnet's own Conformer; empty: not measured."""
    file, column = COSTS[what]
    found = pd.read_csv(MEASURED / file)
    found = found[(found["unit"] == "stock") & (found["case"] == "conformer_12_30s")]
    measured = found.set_index("variant")[column].get(variant)
    return cell(measured, 1 if what == "step" else 2)


@cache
def steps() -> pd.DataFrame:
    """Eager training steps on an H100, as multiples of nopos."""
    found = pd.read_csv(MEASURED / "steps_h100.csv")
    return found[found["compiled"].isna() & (found["unit"] == "nopos")]


def of_gpu() -> str:
    """A training step on a GPU: each variant's time as a multiple of nopos, not compiled."""
    return by_case(steps().pivot(index="variant", columns="case", values="step"))


def of_conformer() -> str:
    """ESPnet's Conformer: word error rates, and time and memory at 30 s as multiples of its own."""
    scores, rows = scores_of("digits_conformer", "length"), []
    for variant in CONFORMERS:
        errors = [cell(scores.found[variant, at].value, 1) for at in ("3–6", "30–40")]
        measured = "stock" if variant == "rel_pos" else variant
        costs = [beside_stock(what, measured) for what in COSTS]
        rows.append([CONFORMERS_TYPED.get(variant, f"`{variant}`"), *errors, *costs])
    heads = ["`pos`", "3–6 digits, as in training, WER %", "30–40 digits, WER %"]
    return table([*heads, "time of a training step", "its memory", "time of recognition"], rows)


#: cases of benchmarks/results → their names on cost.md
CASES = {"vit_small": "ViT-S", "asr_36": "speech", "wmt_base": "translation"}


def by_case(found: pd.DataFrame) -> str:
    """A row for each variant, in the package's order; a column for each of CASES."""
    heads = {case: head for case, head in CASES.items() if case in found}
    order = names(axes=1)
    rows = sorted(found.index, key=lambda row: order.index(row.partition(",")[0]))
    cells = [[row, *(cell(found.at[row, case], 2) for case in heads)] for row in rows]
    return table(["", *heads.values()], cells)


def of_intervals() -> str:
    """How often intervals are wrong or find a difference, by ``benchmarks/intervals.py``."""
    found = pd.read_csv(MEASURED / "intervals.csv").set_index(["compared", "trainings"])
    shown = [(part, trainings) for part in ("wrong", "found") for trainings in ("3", "5")]
    rows = [
        [name, *(cell(100 * found.at[(name, trainings), part], 1) for part, trainings in shown)]
        for name in SIMULATED
    ]
    return table(["%", *(f"{part}, {trainings} seeds" for part, trainings in shown)], rows)


def of_answers() -> str:
    """How often answers say "worse" wrongly, or find what is worse, by the same script."""
    found = pd.read_csv(MEASURED / "answers.csv")
    found = found[(found["variants"] == 7) & (found["items"] >= ITEMS)]
    shares = "by_trainings", "wrong", "found_5", "found_10"
    rows = [
        [
            *(f"{one[name]:g}" for name in ("items", "right")),
            f"{100 * one['agree']:.0f}",
            f"{one['trainings']:g}",
            *(cell(100 * one[name], 1) for name in shares),
        ]
        for _, one in found.iterrows()
    ]
    heads = ["test items", "right, %", "two trainings agree on, %", "seeds"]
    heads += ["wrong by trainings alone, %", "wrong, %"]
    return table([*heads, "found: 5 points, %", "found: 10 points, %"], rows)


def cell(value: float | None, decimals: int) -> str:
    """As text; nothing where nothing was measured."""
    return "" if value is None or pd.isna(value) else f"{value:.{decimals}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True) + "\n"


@cache
def answered() -> list[Scores]:
    """The scores beside ANSWER, with its chance."""
    (one,) = stored(ANSWER.with_suffix(".csv"))
    one.study.variants = {name: one.study.variants[name] for name in one.scores["variant"]}
    one.study.answer.chance = json.loads(ANSWER.read_text())["chance"]
    return every(one)


def answer() -> dict[str, object]:
    """ANSWER with its ranges made anew."""
    scores = answered()
    ranges = of_ranges(scores[0].result.study.answer, scores)
    return {**json.loads(ANSWER.read_text()), "ranges": ranges}


def of_answer() -> str:
    """What an answer says of the data and the scores; its page says what parentheses are."""
    said = sentences(answer(), answered()[0].result.study)
    return "\n>\n".join(f"> {line}" for line in said if not line.startswith(BRACKETS)) + "\n"


def results() -> dict[Path, str]:
    """The pages of studies/results."""
    pages = {}
    for path in sorted(RESULTS.glob("*.csv")):
        if path.stem != "protocols":
            target = path.with_suffix(".md")
            before = target.read_text("utf-8") if target.exists() else ""
            read = re.search(r"<!-- read -->.*?<!-- /read -->\n", before, flags=re.DOTALL)
            first, rest = "\n".join(map(page, studies(path.stem))).split("\n", 1)
            by_hand = f"\n{filled(read[0], items=True)}" if read else ""
            pages[target] = f"{first}\n{by_hand}{rest}"
    return pages


def page(result: Result) -> str:
    """Of a study: when its protocol was written, and the tables of every evaluation and metric."""
    shown = [table for scores in every(result) for table in shown_tables.tables(scores)]
    result.notes.append(protocol(result.name))
    return report.markdown({"result": result, "said": [], "tables": shown})


def protocol(study: str) -> str:
    """When it was committed, and when the first results were; what changed the YAML since."""
    rows = pd.read_csv(RESULTS / "protocols.csv", keep_default_na=False)
    rows = rows[rows["study"] == study]
    yaml = f"[{study}.yaml](../../configs/studies/{study}.yaml)"
    if rows.empty:
        return f"{yaml}: not committed with results yet."
    at = {what: list(of["commit"]) for what, of in rows.groupby("what")}
    (first,), (came,) = at["protocol"], at["results"]
    when = f"`{first}`, before the first results in `{came}`"
    if not first:
        when = f"none of its own; first results in `{came}`"
    elif first == came:
        when = f"`{came}`, **with its first results**: nothing shows that it was written before"
    changes = [
        f"`{one}` {about}"
        for one, about in rows[rows["what"] == "changed"][["commit", "subject"]].to_numpy()
    ]
    text = f"Protocol, in {yaml}: {when}."
    return f"{text} The file changed afterwards in: {'; '.join(changes)}." if changes else text


def pictures() -> None:
    """Draw the figures that pages and README show."""
    for name in ("digit_canvas", "digit_canvas_long", "number_canvas", "canvas", "canvas_long"):
        (one,) = studies(name)
        scores = Scores(one, one.study.report.evaluation, one.study.report.metric)
        scores.variants = [one for one in scores.variants if one in FIGURE] or scores.variants
        figure.draw(scores, RESULTS / f"{name}.png")
    figure.draw(scores_of("digit_univit", "sizes"), RESULTS / "digit_univit.png")
    figure.draw(answered()[0], HERE / "answer.png")
    losses = scores_of("multi30k_short", "loss_long")
    losses.variants = [one for one in losses.variants if one in CAPTIONS]
    figure.draw(losses, RESULTS / "multi30k_short_loss.png")
    words = by_words()
    words.found, words.variants = words.differences, [v for v in words.variants if v != "sinpos"]
    figure.draw(words, RESULTS / "multi30k_short.png")


def by_words() -> Scores:
    """BLEU of captions by the words of their references, of variants with stored sentences."""
    (one,) = studies("multi30k_short")
    study = one.study.model_copy(deep=True)
    study.report.x_label = "words of the reference"
    study.report.y_label = "BLEU more than with sinusoids"
    items = one.items[one.items["metric"] == "bleu"]
    words = pd.cut(items["stats_1"], WORDS, labels=LENGTHS).astype(str)
    items = items.assign(condition=words, item=items["evaluation"] + items["item"])
    items = items.sort_values("condition", key=lambda of: of.map(LENGTHS.index), kind="stable")
    return of_items(replace(one, study=study), items, "words")


def filled(text: str, items: bool = False) -> str:
    """The page with its tables and numbers anew; ``items`` as for :func:`number`.

    Raises:
        KeyError: a table of that name or a number is not known.
    """

    def anew(match: re.Match[str]) -> str:
        name = match[1]
        own = {
            "gpu": of_gpu,
            "conformer": of_conformer,
            "scores": of_scores,
            "intervals": of_intervals,
            "answers": of_answers,
            "answer": of_answer,
        }
        return f"<!-- {name} -->\n{own[name]()}<!-- -->"

    text = re.sub(
        r"<!--=(.+?)-->.*?<!--/-->", lambda m: f"<!--={m[1]}-->{number(m[1], items)}<!--/-->", text
    )
    return re.sub(r"<!-- (\w+) -->\n.*?<!-- -->", anew, text, flags=re.DOTALL)


if __name__ == "__main__":
    pictures()
    for path in PAGES:
        path.write_text(filled(path.read_text()))
    for path, text in results().items():
        path.write_text(text)
    ANSWER.write_text(json.dumps(answer(), indent=2))
