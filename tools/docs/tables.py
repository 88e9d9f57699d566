"""Fills the numbers and tables of PAGES and makes the pages of studies/results.

    cape-report digits --data recordings=DIR --write report
    cp report/scores.csv studies/results/digits.csv
    cp report/scores-items.csv.xz studies/results/digits-items.csv.xz
    python tools/docs/tables.py

The answer in docs/ask.md and docs/answers/my_images.json are made of docs/answers/my_images.csv.

A table stands between ``<!-- NAME -->`` and ``<!-- -->``, a number between ``<!--=STUDY:EVALUATION:
VARIANT:CONDITION-->`` and ``<!--/-->``; VARIANT or CONDITION may be a difference, A−B with a minus
sign, and a test by BLEU has parts (PARTS_OF_BLEU), as in precision_of_bleu. A page of
studies/results begins with what is read from it, which is written by hand between ``<!-- read -->``
and ``<!-- /read -->`` and stays; its numbers are filled too. trained.csv, by hand too, says when,
where and with which code.
"""

import json
import math
import re
import runpy
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mode
from typing import Any

import pandas as pd
import yaml

from cape_plugins.variants import names
from cape_studies import config, figure, yamls
from cape_studies import tables as shown_tables
from cape_studies.answer import BRACKETS, of_result, sentences
from cape_studies.compare import Scores, every
from cape_studies.items import PARTS, made
from cape_studies.results import of_study
from cape_studies.stats import TRAININGS, Estimate
from cape_studies.tidy import NO_ITEMS, Result, check, read

_simulated = runpy.run_path(str(Path(__file__).with_name("simulated.py")))
SIMULATED, cell, table = (_simulated[name] for name in ("TABLES", "cell", "table"))

ROOT = Path(__file__).parents[2]
HERE = ROOT / "docs"
RESULTS = ROOT / "studies" / "results"
MEASURED = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *(ROOT / "integrations").glob("*/README.md"), RESULTS / "README.md"]
PAGES += [HERE / f"{name}.md" for name in ("ask", "cost", "evidence", "intervals", "paper")]
ANSWER = HERE / "answers" / "my_images.json"  # beside its CSV
#: of scores; tables.yaml says what its keys are
TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
APART = 10  # points between trainings from which on a cell is their range
FIGURE = {"cape_rope", "rope", "rope_gap", "rope_moved", "nopos"}  # of objects that move
RECALL = {
    "alibi",
    "alibi_long",
    "rope",
    "rope_yarn",
    "nopos",
    "rope_nopos",
    "cape_rope",
    "random_rope",
}
NO_SCORES = {"protocols", "trained"}  # CSVs of RESULTS
DEMO = "What `make demo-full` trains, in three hosts"
READ_IT = "[How to read this](../../docs/intervals.md#a-page-of-a-study);"
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


@cache
def asked(study: str) -> config.Study:
    """What its YAML says."""
    return config.load(yamls.find(study))


def stored(path: Path) -> list[Result]:
    """The studies in a scores.csv that cape-report wrote, under another name."""
    beside = path.with_name(f"{path.stem}-items.csv.xz")
    items = read(beside) if beside.exists() else NO_ITEMS.assign(study="")
    note = f"{path.name}: single test items are not stored, so that intervals"
    found = []
    for name, scores in read(path).groupby("study", sort=False):
        study = asked(str(name)).model_copy(deep=True)
        for variant in scores["variant"].unique():  # one that the study has no more
            study.variants.setdefault(variant, config.Variant())
        mine = items[items["study"] == name]
        check(scores, mine)
        notes = [] if len(mine) else [f"{note} are for other trainings on the same items."]
        found.append(of_study(study, scores, mine, notes))
    return found


@cache
def studies(name: str) -> list[Result]:
    """Those of studies/results/NAME.csv."""
    return stored(RESULTS / f"{name}.csv")


@cache
def scores_of(name: str, evaluation: str, seeds: tuple[int, ...] = ()) -> Scores:
    """Of one evaluation, by its first metric; of captions also PARTS_OF_BLEU.

    Of two, A−B, see :func:`together`. ``seeds``: of these trainings alone.
    """
    (one,) = studies(name)
    if seeds:
        mine = {part: getattr(one, part) for part in ("scores", "items")}
        mine = {part: of[of["seed"].isin(seeds)] for part, of in mine.items()}
        one = replace(one, **mine)
    part, _, test = evaluation.partition("_of_")
    if part in PARTS_OF_BLEU:
        items = one.items[(one.items["metric"] == "bleu") & (one.items["evaluation"] == test)]
        return of_items(one, items.assign(**PARTS_OF_BLEU[part](items)), evaluation)
    tests = evaluation.split("−")
    if len(tests) > 1:
        one = replace(one, scores=together(one.scores, tests), items=together(one.items, tests))
    rows = one.scores[one.scores["evaluation"] == evaluation]
    about = asked(one.name).evaluations.get(tests[0])  # none: the study has it no more
    return Scores(one, evaluation, next(iter(about.metrics if about else rows["metric"])))


def together(rows: pd.DataFrame, tests: Sequence[str]) -> pd.DataFrame:
    """Rows of these evaluations as of one, A−B, whose conditions are ``A:CONDITION`` and so on."""
    rows = rows[rows["evaluation"].isin(tests)]
    at = rows["evaluation"] + ":" + rows["condition"]
    return rows.assign(condition=at, evaluation="−".join(tests))


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

    ``step:vit_small:rope`` is the time of a training step on a GPU, see :func:`steps`,
    ``step:wmt_base:alibi/sinpos`` that beside another variant's, and ``stock:memory:alibi:10s`` one
    of COSTS. EVALUATION may be a difference too. With ``:alone`` at its end a score has no
    interval, with ``:seeds 4 5 6`` it is of these trainings alone.

    Args:
        of: which.
        items: with the mark of :func:`by_items`.

    Raises:
        KeyError: there is no such score or step.
    """
    if of.startswith("step:"):
        _, case, compared = of.split(":")
        variant, _, beside = compared.partition("/")
        times = steps().set_index(["case", "variant"])["step"]
        return cell(times[case, variant] / times[case, beside or "nopos"], 2)
    if of.startswith("stock:"):
        return beside_stock(*of.split(":")[1:])
    study, evaluation, variant, condition, *how = of.split(":")
    seeds = " ".join(one.removeprefix("seeds ") for one in how if one != "alone")
    scores = scores_of(study, evaluation, tuple(map(int, seeds.split())))
    if "−" in evaluation:
        condition = "−".join(f"{test}:{condition}" for test in evaluation.split("−"))
    (one, *other), (at, *less) = variant.split("−"), condition.split("−")
    digits = 2 if scores.metric == "loss" else 1
    differs = bool(other or less)
    found = scores.found[one, at]
    if differs:
        found = scores.difference(one, (other or [one])[0], at, (less or [at])[0])
    mark = by_items(found) if items and differs else ""
    found = found._replace(items=math.nan)
    if "alone" in how:
        found = found._replace(low=math.nan, high=math.nan)
    return shown_tables.cell(found, digits, "+" if differs else "") + mark


def by_items(found: Estimate) -> str:
    """A dagger after a difference that is significant, and less than twice the standard error by
    the choice of test items."""
    return "†" if found.differs() and abs(found.value) < 2 * found.items else ""


def of_table(name: str) -> str:
    """One of TABLES; bold is what :func:`column` says."""
    shown, columns = TABLES[name], {}
    rows = {**shown["rows"], "trainings": ""}
    for head, test in shown.get("columns", {}).items():
        study, evaluation, condition = test.split(":")
        columns[head] = column(scores_of(study, evaluation), condition, rows.values(), shown["own"])
    for head, what in shown.get("costs", {}).items():
        columns[head] = {one: beside_stock(what, one) for one in rows.values()}
    cells = [[typed, *(of.get(one, "") for of in columns.values())] for typed, one in rows.items()]
    return table(["", *columns], [row for row in cells if any(row[1:])])


def column(scores: Scores, condition: str, variants: Iterable[str], own: str) -> dict[str, str]:
    """Variant → its score; "" → the commonest number of trainings.

    Bold: the best of the column, if it is significantly better than the host's ``own``. Where
    trainings are more than APART, there is their range.
    A score of another number of trainings has it in parentheses.
    """
    values = {
        one: scores.values[one, condition] for one in variants if (one, condition) in scores.found
    }
    means = {one: scores.found[one, condition].value for one in values}
    usual = mode(len(found) for found in values.values())
    wide = [one for one, found in values.items() if found.max() - found.min() > APART]
    sure = {one: mean for one, mean in means.items() if mean == mean} or means
    best = (max if scores.higher else min)(sure, key=sure.__getitem__)
    digits = 2 if scores.metric == "loss" else 1
    cells = {one: f"{mean:.{digits}f}" if mean == mean else "–" for one, mean in means.items()}
    cells |= {one: f"{values[one].min():.0f} to {values[one].max():.0f}" for one in wide}
    if (own, condition) in scores.found and scores.difference(best, own, condition).differs():
        cells[best] = f"**{cells[best]}**"
    for one, found in values.items():
        cells[one] += f" ({len(found)})" if len(found) != usual else ""
    return {**cells, "": str(usual)}


CONFORMERS = {"10s": "conformer_12", "30s": "conformer_12_30s"}  # in benchmarks/results
#: name of a cost → the file in benchmarks/results, its column
COSTS = {
    "step": ("steps_h100.csv", "step"),
    "memory": ("steps_h100.csv", "memory"),
    "recognition": ("recognition_h100.csv", "step"),
    "recognition_memory": ("recognition_h100.csv", "memory"),
}


def beside_stock(what: str, variant: str, seconds: str = "30s") -> str:
    """One of COSTS, as a multiple of ESPnet's own Conformer; empty: not measured."""
    file, column = COSTS[what]
    found = pd.read_csv(MEASURED / file)
    found = found[(found["unit"] == "stock") & (found["case"] == CONFORMERS[seconds])]
    names = {"rel_pos": "stock", "relpos_2.5s": ""}  # as digits_conformer calls them
    measured = found.set_index("variant")[column].get(names.get(variant, variant))
    return cell(measured, 1 if what == "step" else 2)


@cache
def steps() -> pd.DataFrame:
    """Eager training steps on an H100, as multiples of nopos."""
    found = pd.read_csv(MEASURED / "steps_h100.csv")
    return found[found["compiled"].isna() & (found["unit"] == "nopos")]


def of_gpu() -> str:
    """A training step on a GPU: each variant's time as a multiple of nopos, not compiled."""
    return by_case(steps().pivot(index="variant", columns="case", values="step"))


#: cases of benchmarks/results → their names on cost.md
CASES = {"vit_small": "ViT-S", "asr_36": "speech", "wmt_base": "translation"}


def by_case(found: pd.DataFrame) -> str:
    """A row for each variant, in the package's order; a column for each of CASES."""
    heads = {case: head for case, head in CASES.items() if case in found}
    order = names(axes=1)
    rows = sorted(found.index, key=lambda row: order.index(row.partition(",")[0]))
    cells = [[row, *(cell(found.at[row, case], 2) for case in heads)] for row in rows]
    return table(["", *heads.values()], cells)


def of_studies() -> str:
    """Every page of RESULTS; those of one or two trainings are not in the navigation."""
    rows, few = [], []
    for path in sorted(RESULTS.glob("*.csv")):
        if path.stem not in NO_SCORES:
            seeds = pd.read_csv(path, usecols=["study", "variant", "seed"]).drop_duplicates()
            trainings = seeds.groupby(["study", "variant"]).size()
            link = f"[{path.stem}]({path.stem}.md)"
            if trainings.max() < TRAININGS:
                few.append(link)
                continue
            title = asked(seeds["study"][0]).title if seeds["study"].nunique() == 1 else DEMO
            rows.append([link, title, str(mode(trainings))])
    pages = "\n".join(link.partition("]")[0][1:] for link, *_ in rows)
    shown = table(["study", "", "trainings of most variants"], rows)
    shown += f"\nOne or two trainings: {', '.join(few)}.\n"
    return f"{shown}\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


@cache
def answered() -> list[Scores]:
    """The scores beside ANSWER, with its chance."""
    (one,) = stored(ANSWER.with_suffix(".csv"))
    about = one.answer.model_copy(update={"chance": json.loads(ANSWER.read_text())["chance"]})
    return every(replace(one, variants=[*one.scores["variant"].unique()], answer=about))


def answer() -> dict[str, object]:
    """ANSWER with its ranges made anew."""
    scores = answered()
    made_anew = of_result(scores[0].result, scores)
    return {**made_anew, **json.loads(ANSWER.read_text()), "ranges": made_anew["ranges"]}


def of_answer() -> str:
    """What an answer says of the data and the scores; its page says what parentheses are."""
    said = sentences(answer())
    return "\n>\n".join(f"> {line}" for line in said if not line.startswith(BRACKETS)) + "\n"


def results() -> dict[Path, str]:
    """The pages of studies/results."""
    paths = (path for path in sorted(RESULTS.glob("*.csv")) if path.stem not in NO_SCORES)
    return {path.with_suffix(".md"): of_csv(path) for path in paths}


def of_csv(path: Path) -> str:
    """The page of a CSV of scores, with what is read from it as it stands there."""
    target = path.with_suffix(".md")
    before = target.read_text("utf-8") if target.exists() else ""
    read = re.findall(r"<!-- read -->.*?<!-- /read -->", before, flags=re.DOTALL)
    first, *more = studies(path.stem)
    heads = [filled(one, items=True) for one in read]
    parts = [page(first, path.stem, heads), *(page(one, path.stem) for one in more)]
    return "\n\n".join([*parts, f"{READ_IT} [each training]({path.name}).\n"])


def page(result: Result, file: str, heads: Sequence[str] = ()) -> str:
    """Of a study: when its protocol was written, the means of every evaluation by its first metric,
    and the differences of the first evaluation, where the file has no other study.

    Args:
        result: of the study.
        file: the name of its CSV, which may be that of another study that runs it now.
        heads: what comes before.
    """
    metrics = result.scores.groupby("evaluation", sort=False)["metric"].first()
    kept = {one: metrics[one] for one in metrics.index if one in asked(result.name).evaluations}
    first = {result.report.evaluation: result.report.metric}
    shown = [Scores(result, *one) for one in {**first, **kept, **first}.items()]
    single = [one for one in shown if len(one.conditions) == 1]
    parts = [f"## {result.title}", *heads, protocol(result.name, file)]
    parts += [means([one]) for one in shown if one not in single]
    parts += [means(single) if single else ""]
    parts += [differences(shown[0])] if len(studies(file)) == 1 else []
    return "\n\n".join(filter(None, parts))


def _heads(scores: Scores) -> dict[str, str]:
    """condition → head of its column."""
    return {one: f"*{one}*" if one in scores.seen else one for one in scores.conditions}


def _title(scores: Scores) -> str:
    names = dict.fromkeys([scores.evaluation, scores.metric])
    return f"{', '.join(names)} {'↑' if scores.higher else '↓'}"


def means(tests: Sequence[Scores]) -> str:
    """A row for each variant, but for those of one or two trainings where others have more; cells
    are what :func:`column` says. Of one evaluation, or of several that have one condition each."""
    trainings = {variant: n for one in tests for variant, n in one.trainings.items()}
    least = min(TRAININGS, max(trainings.values()))
    variants = [one for one, n in trainings.items() if n >= least]
    shown = [(one, condition, head) for one in tests for condition, head in _heads(one).items()]
    columns = [
        column(one, condition, variants, one.result.report.baseline) for one, condition, _ in shown
    ]
    counts = {one.pop("") for one in columns}
    title = f"{' to '.join(sorted(counts))} training{'s' * (counts != {'1'})}"
    heads = [head if len(tests) == 1 else f"{_title(one)}: {head}" for one, _, head in shown]
    if len(tests) == 1:
        title = f"{_title(tests[0])}, {title}"
    rows = [[one, *(of.get(one, "") for of in columns)] for one in variants]
    return f"### {title}\n\n{table(['', *heads], rows)}".rstrip()


def differences(scores: Scores) -> str:
    """A row for each variant that was trained often enough: less the baseline, bold where the
    interval excludes 0; nothing where no variant was. Of "1024 all" and "1024 2-64" the first."""
    base = scores.result.report.baseline
    heads = _heads(scores)
    heads = {one: head for one, head in heads.items() if one.endswith(" all")} or heads
    digits = 2 if scores.metric == "loss" else 1
    rows = []
    for variant in scores.variants:
        found = [scores.differences.get((variant, one)) for one in heads]
        if any(one and one.known for one in found):
            cells = [
                one and shown_tables.cell(one._replace(items=math.nan), digits, "+") + by_items(one)
                for one in found
            ]
            bold = [one and one.differs() for one in found]
            rows.append(
                [variant, *(f"**{c}**" if b else c or "" for c, b in zip(cells, bold, strict=True))]
            )
    shown = table(["", *heads.values()], rows)
    return f"### {_title(scores)}, less {base}\n\n{shown}".rstrip() if rows else ""


def protocol(study: str, file: str) -> str:
    """Where it is, and whether it was committed before the first results; whether the YAML of
    another study has added to it since."""
    rows = pd.read_csv(RESULTS / "protocols.csv", keep_default_na=False)
    text = f"[Protocol](../../configs/studies/{study}.yaml)"
    at = rows[rows["study"] == study].groupby("what")["commit"].first()
    if at.empty:
        return f"{text}: not committed with results yet."
    when = "before its first results"
    if not at["protocol"]:
        when = "none of its own"
    elif at["protocol"] == at["results"]:
        when = "**with its first results**: nothing shows that it was written before"
    added = rows[(rows["study"] == file) & (rows["what"] == "added")]
    more = (
        f" [Another](../../configs/studies/{file}.yaml) runs it now, and added to it in "
        f"{', '.join(f'`{one}`' for one in added['commit'])}."
        if len(added)
        else ""
    )
    return f"{text}, {when} ([commits](protocols.csv), [machines](trained.csv)).{more}"


def pictures() -> None:
    """Draw the figures that pages and README show."""
    for name in ("digit_canvas", "digit_canvas_long", "number_canvas", "canvas", "canvas_long"):
        figure.draw(among(scores_of(name, "shift"), FIGURE), RESULTS / f"{name}.png")
    recalled = among(scores_of("recall", "exact"), RECALL)
    # of a longer test by distance alone
    recalled.conditions = [one for one in recalled.conditions if "–" in one or one in recalled.seen]
    recalled.found = {k: v for k, v in recalled.found.items() if k[1] in recalled.conditions}
    figure.draw(recalled, RESULTS / "recall.png")
    figure.draw(scores_of("digit_univit", "sizes"), RESULTS / "digit_univit.png", by_speed)
    figure.draw(answered()[0], HERE / "answer.png")
    losses = among(scores_of("multi30k_short", "loss_long"), CAPTIONS)
    figure.draw(losses, RESULTS / "multi30k_short_loss.png")
    words = by_words("multi30k_short")
    words.found, words.variants = words.differences, [v for v in words.variants if v != "sinpos"]
    figure.draw(words, RESULTS / "multi30k_short.png")


def among(scores: Scores, variants: Container[str]) -> Scores:
    """With these variants alone, or all of its own where it has none of them."""
    scores.variants = [one for one in scores.variants if one in variants] or scores.variants
    return scores


def by_speed(axis: Any, scores: Scores) -> figure.At:
    """Mean throughput, with the conditions' names beside the points."""
    means = Scores(scores.result, scores.evaluation, "throughput").found
    axis.set(xlabel="images per second of a CPU core (batches of 16)")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    for (variant, condition), one in scores.found.items():
        point = means[variant, condition].value, one.value
        axis.annotate(condition, point, (2, 2), textcoords="offset points", fontsize="x-small")
    return {key: means[key].value for key in scores.found}


def by_words(study: str) -> Scores:
    """BLEU of captions by the words of their references, of variants with stored sentences."""
    (one,) = studies(study)
    labels = {"x_label": "words of the reference", "y_label": "BLEU more than with sinusoids"}
    both = one.items["evaluation"].isin(["bleu", "bleu_long"])  # with the same search
    items = one.items[both & (one.items["metric"] == "bleu")]
    words = pd.cut(items["stats_1"], WORDS, labels=LENGTHS).astype(str)
    items = items.assign(condition=words, item=items["evaluation"] + items["item"])
    items = items.sort_values("condition", key=lambda of: of.map(LENGTHS.index), kind="stable")
    return of_items(replace(one, report=one.report.model_copy(update=labels)), items, "words")


def filled(text: str, items: bool = False) -> str:
    """The page with its tables and numbers anew; ``items`` as for :func:`number`.

    Raises:
        KeyError: a table of that name or a number is not known.
    """

    def anew(match: re.Match[str]) -> str:
        name = match[1]
        own = SIMULATED | {"gpu": of_gpu, "answer": of_answer, "studies": of_studies}
        made = of_table(name) if name in TABLES else own[name]()
        return f"<!-- {name} -->\n{made}<!-- -->"

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
