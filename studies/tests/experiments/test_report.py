"""What cape-report makes of scores and of what each test item adds to them."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cape_studies import figure, page
from cape_studies.answer import sample
from cape_studies.compare import Scores
from cape_studies.config import Study
from cape_studies.results import of_study
from cape_studies.stats import item_error
from cape_studies.tidy import NO_ITEMS, TIDY, Result, check

SIZES = ("24", "32", "64")
STUDY = {
    "title": "A small study <of positions> & sizes",
    "host": "timm",
    "protocol": "Two variants, the same recipe. Expected: cape flatter beyond the trained size.",
    "options": {"epochs": 2},
    "variants": {"cape": {}, "sinpos": {}, "nopos": {}},
    "seeds": [0, 1, 2],
    "evaluations": {"sizes": {"metrics": {"top1": "higher"}}},
    "report": {
        "baseline": "sinpos",
        "x_label": "image side (pixels)",
        "y_label": "top-1 accuracy (%)",
        "title": "trained at 32²",
        "trained_on": ["32"],
    },
}
RATES = {"cape": (0.6, 0.8, 0.75), "sinpos": (0.5, 0.8, 0.4), "nopos": (0.4, 0.7, 0.55)}


def rows_of(variant: str, seed: int, images: int = 200):
    """Scores of a training, and the items that make them."""
    random = np.random.default_rng([seed, len(variant)])
    right = {c: random.random(images) < r for c, r in zip(SIZES, RATES[variant], strict=True)}
    scores, items = [], []
    for at, hits in right.items():
        about = ("small", "timm", variant, seed, "sizes", at, "top1")
        scores.append((*about, 100 * hits.mean(), True, at == "32", images, "percent"))
        each = enumerate(hits)
        items += [(at, "top1", "percent", f"{i}.png", int(hit), 1) for i, hit in each]
    columns = ["condition", "metric", "how", "item", "value", "weight"]
    own = pd.DataFrame(items, columns=columns).assign(variant=variant, seed=seed)
    return pd.DataFrame(scores, columns=TIDY), own.assign(evaluation="sizes")


def of_seeds(seeds=(0, 1, 2), more=()) -> Result:
    """A study's scores and items; ``more`` are seeds of cape alone."""
    each = [(variant, seed) for seed in seeds for variant in RATES]
    each += [("cape", seed) for seed in more]
    scores, items = zip(*(rows_of(*one) for one in each), strict=True)
    whole = pd.concat(items) if len(seeds) > 2 else NO_ITEMS
    return of_study(Study.model_validate(STUDY), pd.concat(scores), whole)


def changed(small: Result, **changes) -> Result:
    """The same scores of a study with other keys."""
    return of_study(Study.model_validate({**STUDY, **changes}), small.scores, small.items)


@pytest.fixture(autouse=True)
def figures(monkeypatch, request):
    """They take most of a report's time: what is drawn is kept, and no picture made of it."""
    if "html" in request.fixturenames:  # which has them
        return None
    made = []

    def keep(drawn, out, **_):
        made.append(drawn)
        out.write(b"PNG")

    monkeypatch.setattr(figure.Figure, "savefig", keep)
    return made


@pytest.fixture
def small() -> Result:
    """Three seeds of three variants."""
    return of_seeds()


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> str:
    return page.write([page.section(of_seeds())], tmp_path_factory.mktemp("page")).read_text()


def scores_of(result: Result) -> Scores:
    return Scores(result, "sizes", "top1")


def reported(result: Result) -> str:
    """The tables of a report."""
    return page.markdown(page.section(result))


def row(text: str, variant: str, table: int = 0) -> list[str]:
    """The cells of a variant in one of the tables."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {variant} ")]
    return [cell.strip() for cell in lines[table].split("|")[1:-1]]


# --- intervals


def test_a_percentage_ends_at_0_and_100_and_a_difference_does_not(small):
    values = {0: 99.0, 1: 97.0, 2: 100.0}
    rows = small.scores.assign(value=small.scores["seed"].map(values))
    scores = scores_of(replace(small, scores=rows, items=NO_ITEMS))
    found = scores.found["cape", "32"]
    assert (found.low, found.high) == pytest.approx((94.87, 100), abs=0.01)
    assert scores.differences["cape", "32"].high > 0
    errors = scores_of(replace(small, scores=rows.assign(higher_is_better=False), items=NO_ITEMS))
    assert errors.found["cape", "32"].high == pytest.approx(102.46, abs=0.01)  # these may be more


TUNED = {"nopos": {}, "cape": {"after": "nopos"}, "sinpos": {"after": "nopos"}}
#: sinpos is another test of cape's trainings
SCALED = {"nopos": {"options": {"a": 1}}, "cape": {}}
SCALED["sinpos"] = {"evaluate": {"sizes": {"rope-scaling": "yarn"}}}


@pytest.mark.parametrize("more", [(), (3, 4)])
@pytest.mark.parametrize(
    ("variants", "two", "at", "paired"),
    [
        (STUDY["variants"], ("cape", "sinpos"), ("64", "64"), False),
        (STUDY["variants"], ("cape", "cape"), ("32", "64"), True),
        (TUNED, ("cape", "sinpos"), ("64", "64"), True),
        (SCALED, ("sinpos", "cape"), ("64", "64"), True),
        (SCALED, ("nopos", "cape"), ("64", "64"), False),
    ],
)
def test_trainings_are_pairs_of_a_seed_only_if_they_are_the_same_or_begin_with_the_same_weights(
    variants, two, at, paired, more
):
    scores = scores_of(changed(of_seeds(more=more), variants=variants))
    one, other = (scores.values[key] for key in zip(two, at, strict=True))
    test = stats.ttest_ind(one, other, equal_var=False)
    if paired:
        both = one.index.intersection(other.index)
        test = stats.ttest_rel(one[both], other[both])
    found = scores.difference(*two, *at)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval()))
    if one is scores.values["cape", "64"]:
        words = reported(changed(of_seeds(more=more), variants=variants))
        assert ("Student's t of pairs of a seed" if paired else "Welch's t.") in words


def test_more_trainings_of_one_variant_count_all():
    many = of_seeds(more=(3, 4, 5))
    assert row(reported(many), "cape", 1)[1] == "6 and 3"
    scores = scores_of(many)
    less = scores.differences["cape", "64"]
    assert less.value == pytest.approx(
        scores.values["cape", "64"].mean() - scores.values["sinpos", "64"].mean()
    )


def test_the_error_of_test_items_stands_beside_a_score_and_a_difference(small):
    """Of images that are right or wrong, averaged over three trainings."""
    scores = scores_of(small)
    right = {}
    items = small.items.query("condition == '64'")
    for variant in ("cape", "sinpos"):
        mine = items[items["variant"] == variant]
        right[variant] = 100 * mine.groupby("item")["value"].mean()
    found, less = scores.found["cape", "64"], scores.differences["cape", "64"]
    assert found.items == pytest.approx(stats.sem(right["cape"]))
    assert less.items == pytest.approx(stats.sem(right["cape"] - right["sinpos"]))
    text = reported(small)
    low, high = (f"{end:.2f}" for end in (found.low, found.high))
    assert row(text, "cape")[4] == f"{found.value:.2f} ± {found.items:.2f} [{low}, {high}]"
    assert f" ± {less.items:.2f} [" in row(text, "cape", 1)[4]
    assert "±: standard error of the choice of test items" in text


def test_of_items_that_are_not_the_same_a_difference_has_no_error(small):
    mine = (small.items["variant"] == "cape") & (small.items["item"] == "7.png")
    items = small.items.assign(item=small.items["item"].mask(mine, "x.png"))
    text = reported(replace(small, items=items))
    assert "±" in row(text, "cape")[2]
    assert "±" not in row(text, "cape", 1)[2]
    assert "±" in row(text, "nopos", 1)[2]


def test_of_fewer_than_three_trainings_there_are_values_and_no_interval():
    two, one = of_seeds([0, 1]), of_seeds([0])
    text = reported(two)
    each = scores_of(two).values["cape", "64"]
    assert row(text, "cape")[4] == f"{sum(each) / 2:.2f} ({each[0]:.2f}, {each[1]:.2f})"
    assert "[" not in text
    assert row(reported(one), "cape")[4] == f"{each[0]:.2f}"


# --- missing scores


def lose(small, value, variant="cape"):
    """Without the score of a variant, seed 1, at 64."""
    rows = small.scores.copy()
    at = (rows["variant"] == variant) & (rows["seed"] == 1) & (rows["condition"] == "64")
    rows.loc[at, "value"] = value
    return replace(small, scores=rows[~at] if value is None else rows)


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_training_without_a_score_is_seen_and_there_is_no_mean(small, figures, value):
    small = lose(small, value)
    text, scores = reported(small), scores_of(small)
    first, _, last = scores.values["cape", "64"]
    assert row(text, "cape")[-1] == f"† ({first:.2f}, –, {last:.2f})"
    assert row(text, "cape", 1)[-1] == "†"
    assert "† A training has no score there" in text
    assert scores.found["cape", "24"].known
    lines = {line.get_label(): line.get_ydata() for line in figures[0].axes[0].lines}
    assert np.isnan(lines["cape"]).tolist() == [False, False, True]


# --- what is written


def test_the_table_has_intervals_bold_and_arrows(small):
    scores, text = scores_of(small), reported(small)
    found = scores.found["cape", "32"]
    assert row(text, "cape")[3].startswith(f"**{found.value:.2f} ± ")
    assert row(text, "cape")[3].endswith(f" [{found.low:.2f}, {found.high:.2f}]**")
    assert "**" not in row(text, "cape")[2] + row(text, "cape")[4]
    assert "### sizes, top1 ↑\n" in text


ANSWER = {"answer": {"within": "at 32", "beyond": {}, "chance": 10.0}}


def test_chance_is_a_row_of_the_scores_and_an_answer_has_no_table_of_single_pairs(small):
    text = reported(changed(small, **ANSWER))
    assert row(text, "always the commonest class") == [
        "always the commonest class", "", "10.00", "10.00", "10.00"
    ]  # fmt: skip
    assert "difference from sinpos" not in text
    assert "for all pairs of a range together" in text


def test_chance_is_of_the_first_metric_alone(small):
    top5 = small.scores.assign(metric="top5", value=99.0)
    both = replace(changed(small, **ANSWER), scores=pd.concat([small.scores, top5]))
    assert Scores(both, "sizes", "top1").chance == 10.0
    assert Scores(both, "sizes", "top5").chance is None


def test_an_answer_is_for_other_items_too_where_they_are_stored(small):
    """The same images in all conditions are the same items."""
    one = changed(small, answer={**ANSWER["answer"], "same_items": True})
    answer = page.section(one)["answer"]["ranges"]
    assert {of["items"] for of in answer.values()} == {200}
    without = page.section(replace(one, items=NO_ITEMS))["answer"]["ranges"]
    assert {of["items"] for of in without.values()} == {None}
    for words, of in answer.items():
        for name, apart in of["differences"].items():
            alone = without[words]["differences"][name]
            assert apart["value"] == pytest.approx(alone["value"])
            assert apart["low"] != alone["low"]
    other = page.section(changed(small, **ANSWER))["answer"]["ranges"]
    assert {of["items"] for of in other.values()} == {200, 400}


def right_of(small, condition, variant="cape"):
    """Each item of a condition, averaged over trainings: 100 or 0, and so on."""
    mine = small.items[small.items["variant"] == variant].query("condition == @condition")
    return 100 * mine.groupby("item")["value"].mean()


@pytest.mark.parametrize("same", [True, False])
def test_the_error_of_a_mean_of_two_conditions_is_of_the_same_items_or_of_others(small, same):
    scores = scores_of(small)
    found = sample("cape", [(scores, "24"), (scores, "64")], same)
    one, other = right_of(small, "24"), right_of(small, "64")
    apart = math.hypot(stats.sem(one), stats.sem(other)) / 2
    error = stats.sem((one + other) / 2) if same else apart
    assert item_error(found.influences) == pytest.approx(error)
    assert found.items == len(found.influences) == (200 if same else 400)
    assert found.trainings.tolist() == pytest.approx(
        ((scores.values["cape", "24"] + scores.values["cape", "64"]) / 2).tolist()
    )


def test_items_away_from_the_limits_are_those_of_all_conditions(small):
    scores = scores_of(small)
    found = sample("cape", [(scores, "24"), (scores, "64")], same=True)
    hits = [small.scores.query(f"variant == 'cape' and condition == '{c}'") for c in ("24", "64")]
    wrong = [2 * (100 - of["value"].mean()) for of in hits]  # of 200 images; fewer than are right
    assert found.away == pytest.approx(sum(min(one, 200 - one) for one in wrong))


def test_a_group_is_one_unit_in_all_conditions(small):
    """Ten speakers, each with 20 items in each of two conditions, whose names are others."""
    items = small.items[small.items["item"].str.len() < 9]
    speaker = items["item"].str[:-4].astype(int) % 10
    items = items.assign(
        group="speaker " + speaker.astype(str), item=items["item"] + items["condition"]
    )
    scores = scores_of(replace(small, items=items))
    found = sample("cape", [(scores, "24"), (scores, "64")], same=False)
    assert [*found.sizes] == [40] * 10
    assert (found.items, found.units) == (400, 10)
    of_speaker = [
        right_of(small, c).groupby(lambda item: int(item[:-4]) % 10).mean() for c in ("24", "64")
    ]
    error = stats.sem((of_speaker[0] + of_speaker[1]) / 2)
    assert item_error(found.influences) == pytest.approx(error)


def test_items_of_an_empty_group_stand_alone(small):
    items = small.items.assign(group=np.where(small.items["item"] < "1", "first", None))
    scores = scores_of(replace(small, items=items))
    first = small.items.query("variant == 'cape' and seed == 0 and condition == '24'")["item"] < "1"
    assert len(scores.without("cape", "24")) == 200 - first.sum() + 1
    sizes = sample("cape", [(scores, "24")], same=True).sizes
    assert sorted(sizes) == [1] * (200 - first.sum()) + [first.sum()]


def test_items_that_differ_among_the_trainings_of_a_variant_are_of_no_use(small):
    mine = small.items["item"].eq("7.png") & small.items["seed"].eq(1)
    items = small.items.assign(item=small.items["item"].mask(mine, "x.png"))
    scores = scores_of(replace(small, items=items))
    assert scores.without("cape", "24").empty
    assert sample("cape", [(scores, "24")], same=True).influences.empty


def test_the_figure_has_the_values_at_conditions_that_are_numbers(small, figures):
    """A shift in pixels, in the order of the tests."""
    names = {"24": "10", "32": "0", "64": "2"}
    rows, items = (
        of.assign(condition=of["condition"].replace(names)) for of in (small.scores, small.items)
    )
    small = replace(small, scores=rows, items=items)
    small = changed(small, **ANSWER)
    reported(small)
    (axis,), found = figures[0].axes, scores_of(small).found
    lines = {line.get_label(): line.get_xydata() for line in axis.lines}
    assert {*lines["always the commonest class"][:, 1]} == {10.0}
    assert lines["nopos"][:, 1].tolist() == [found["nopos", str(i)].value for i in (0, 2, 10)]
    # a little aside, so that no variant hides another
    assert lines["nopos"][:, 0] == pytest.approx([0, 2, 10], abs=0.5)
    assert len({lines[name][0, 0] for name in ("cape", "sinpos", "nopos")}) == 3
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["10", "0", "2"]
    assert (figures[0].get_suptitle(), axis.get_xlabel()) == (
        "trained at 32²",
        "image side (pixels)",
    )
    bands = [one.get_paths()[0].vertices for one in axis.collections if "Fill" in repr(one)]
    assert len(bands) == 3
    low = {at: bands[0][abs(bands[0][:, 0] - at) < 0.5, 1].min() for at in (0, 2, 10)}
    assert low == pytest.approx({at: found["cape", str(at)].low for at in (0, 2, 10)})


@pytest.mark.parametrize(("long", "turned"), [(10, 0), (20, 30)])
def test_names_of_conditions_that_have_no_room_side_by_side_are_turned(
    small, figures, long, turned
):
    rows, items = (
        of.assign(condition=of["condition"] + "x" * long) for of in (small.scores, small.items)
    )
    reported(replace(small, scores=rows, items=items))
    assert {one.get_rotation() for one in figures[0].axes[0].get_xticklabels()} == {turned}


def test_no_two_of_forty_variants_are_drawn_alike():
    assert len({tuple(figure.of_variant(index).items()) for index in range(40)}) == 40


def test_a_report_replaces_an_earlier_one_with_all_its_files(small, tmp_path):
    page.write([page.section(small)], tmp_path)
    (tmp_path / "answer.json").write_text("{}")  # of another study
    (tmp_path / "figure-other.png").write_text("")
    (tmp_path / "mine.txt").write_text("")
    page.write([page.section(small)], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("scores.csv", "scores-items.csv.xz", "table.md", "index.html", "figure.png", "mine.txt"),
    }
    columns = pd.read_csv(tmp_path / "scores.csv", nrows=0).columns
    assert [*columns] == TIDY


# --- refusals


@pytest.mark.parametrize(
    "change",
    [lambda of: of.assign(weight=math.nan), lambda of: of[2:], lambda of: of.assign(how="mean")],
)
def test_scores_that_their_items_do_not_make_are_refused(small, change):
    check(small.scores, small.items)
    with pytest.raises(ValueError, match=r"cape 0 sizes 24 top1 is .*, its items make"):
        check(small.scores, change(small.items))


# --- the page


def test_the_page_stands_alone_and_has_it_all(html):
    assert "http" not in html.replace('http-equiv="Content-Security-Policy"', "")
    sources = [part.split('"')[1] for part in html.split(" src")[1:]]
    assert len(sources) == 1
    assert all(one.startswith("data:image/png;base64,iVBOR") for one in sources)
    for part in (
        "A small study &lt;of positions&gt; &amp; sizes",
        "Expected: cape flatter beyond the trained size.",
        "sizes, top1 ↑, difference from sinpos",
        "epochs: 2",
    ):
        assert part in html, part
    assert html.count("<td><strong>") == 3 + 2  # the column 32 of scores and of differences
