"""What the answer says of given scores, and what a user types next."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cape_studies import config as study
from cape_studies import hosts
from cape_studies.answer import converged, of_range, sentences
from cape_studies.stats import Sample
from cape_studies.yamls import find, merge

ANSWER = {"data": "", "metric": "top1", "digits": 1, "floor": "nopos"}
ANSWER["chance_is"] = "always the commonest class"
GOOD, FLOOR, WORST = [80.0, 80.4, 80.2], [70.0, 70.3, 69.8], [60.0, 61.0, 60.5]


def answer(chance=20.0, higher=True, error=0.3, items=200, groups=0, away=None, **each):
    """Each variant's scores; ``error`` is what the choice of items gives each of them. ``items``
    and ``away`` may be of each variant."""
    random = np.random.default_rng(0)
    numbers = items if isinstance(items, dict) else dict.fromkeys(each, items)
    samples = {}
    for name, of in each.items():
        units = groups or numbers[name]
        influences = pd.Series(random.normal(0, error / max(1, units) ** 0.5, units), dtype=float)
        aside = (away or {}).get(name, math.nan)
        samples[name] = Sample(pd.Series(of), influences, numbers[name], [1] * groups, aside)
    return of_range(samples, higher, "nopos", chance)


def words(of, chance=20.0):
    """The paragraph of a range, and those behind it."""
    first, *others = sentences({**ANSWER, "chance": chance, "ranges": {"in testing": of}})
    return first, " ".join(others)


def test_best_alike_and_worse_are_named_with_their_difference_and_its_interval_of_all_pairs():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[80.3, 80.1, 80.3])
    assert (of["best"], of["cannot_be_told_from_it"], of["worse"]) == ("cape", ["rope"], ["nopos"])
    apart = of["differences"]["nopos"]
    assert apart["value"] == pytest.approx(-10.2, abs=0.01)
    assert of["floor_beaten"] is True
    said, more = words(of)
    assert re.fullmatch(
        r"In testing: cape has the best mean, top1 80\.2\. "
        r"Not significantly different from it: rope 80\.2 \(−0\.0 \[−\d\.\d, \+\d\.\d\]\)\. "
        r"Worse: nopos 70\.0 \(−10\.2 \[−1\d\.\d, −\d\.\d\]\)\.",
        said,
    )
    assert "for all pairs of a range together" in more
    assert "and other test items" in more


def test_the_interval_is_wider_than_welchs_by_what_the_items_add():
    of = answer(nopos=FLOOR, rope=GOOD, error=1.0)
    apart = of["differences"]["nopos"]
    welch = stats.ttest_ind(FLOOR, GOOD, equal_var=False).confidence_interval(0.95)
    assert apart["low"] < welch.low < welch.high < apart["high"]
    parts = [np.var(FLOOR, ddof=1) / 3, np.var(GOOD, ddof=1) / 3, 2.0]  # of items: 1² + 1²
    free = sum(parts) ** 2 / sum(p**2 / n for p, n in zip(parts, [2, 2, 199], strict=True))
    reach = stats.t.ppf(0.975, free) * sum(parts) ** 0.5
    assert apart["high"] - apart["value"] == pytest.approx(reach, rel=0.15)  # items are drawn


#: name of a case → the scores, what is said of them, and words that are said and are not
CASES: dict[str, tuple[dict, dict, list[str], list[str]]] = {
    "what holds for these items alone is not called worse": (
        dict(nopos=[79.0, 79.1, 79.2], rope=GOOD, error=2.0),
        dict(worse=[], worse_on_these_items=["nopos"], floor_beaten=False),
        ["Worse on these test items, perhaps not on others: nopos"],
        [],
    ),
    "where single items are not stored nothing is said of others": (
        dict(nopos=FLOOR, rope=GOOD, items=0),
        dict(worse=[], worse_on_these_items=["nopos"], items=None),
        ["Worse on these test items, not tested for others: nopos", "on the same test items"],
        ["where items are stored of both"],
    ),
    "where those of one variant are not stored its pairs alone are of these items": (
        dict(items=dict(nopos=200, rope=200, cape=0), nopos=FLOOR, rope=GOOD, cape=WORST),
        dict(worse=["nopos"], worse_on_these_items=["cape"], of_these_items=["cape"])
        | dict(worse_than_floor=[], worse_than_floor_on_these_items=["cape"]),
        [
            "Worse on these test items, not tested for others: cape",
            "Significantly worse than nopos: cape (on these test items).",
            "where items are stored of both, else on the same test items",
        ],
        [],
    ),
    "of few test items nothing is claimed": (
        dict(nopos=FLOOR, rope=GOOD, items=29),
        dict(worse=[], worse_on_these_items=[], too_few_items=["nopos"], floor_beaten=None),
        ["29 test items", "30 are needed"],
        [],
    ),
    "thirty are enough": (dict(nopos=FLOOR, rope=GOOD, items=30), dict(worse=["nopos"]), [], []),
    "scores near their limit are not compared": (
        dict(error=0.1, away=dict(nopos=79.0, rope=1.0, cape=3.0), nopos=WORST, rope=[99.5] * 3)
        | dict(cape=[98.5, 98.6, 98.5]),
        dict(too_near_the_limit=["cape"], worse=["nopos"], not_compared=[]),
        ["Too near the limit to compare"],
        [],
    ),
    "nor with the floor": (
        dict(error=0.1, away=dict(nopos=1.0, rope=3.0, cape=79.0), nopos=[99.5, 99.6, 99.5])
        | dict(rope=[98.5, 98.6, 98.5], cape=WORST),
        dict(worse_than_floor=["cape"]),
        [],
        [],
    ),
    "several variants of the best mean are named together": (
        dict(nopos=FLOOR, rope=GOOD, cape=[80.2, 80.0, 80.4]),
        dict(best="rope", same_mean=["cape"]),
        ["The best mean, top1 80.2, is that of several: rope, cape."],
        [],
    ),
    "where no positions are best positions hurt": (
        dict(nopos=GOOD, rope=FLOOR, cape=WORST),
        dict(best="nopos", floor_beaten=False, worse_than_floor=["rope", "cape"]),
        ["worse than it are rope, cape: positions hurt here"],
        [],
    ),
    "what is not significantly worse than the floor is not called worse": (
        dict(nopos=[80.0, 81.0, 82.0], rope=[70.0, 71.0, 72.0], cape=[79.0, 81.0, 80.0]),
        dict(worse_than_floor=["rope"], floor_beaten=False),
        ["worse than it are rope: positions hurt here"],
        [],
    ),
    "what is worse than no positions is named where another is better": (
        dict(nopos=FLOOR, rope=GOOD, cape=WORST),
        dict(worse_than_floor=["cape"], floor_beaten=True),
        ["Significantly worse than nopos: cape."],
        [],
    ),
    "a floor that no variant is ahead of is said": (
        dict(nopos=[80.1, 79.0, 80.9], rope=[80.0, 80.5, 79.9], cape=[80.3, 79.5, 80.3]),
        dict(floor_beaten=False, worse_than_floor=[]),
        ["No variant is significantly better than nopos: whether positions help or hurt"],
        [],
    ),
    "the floor is beaten by one that is not the best, which spreads too far": (
        dict(nopos=FLOOR, rope=GOOD, cape=[71.0, 99.0, 89.0]),
        dict(best="cape", worse=[], floor_beaten=True),
        [],
        ["No variant"],
    ),
    "less is better where the metric says so": (
        dict(higher=False, chance=95.0, nopos=FLOOR, rope=GOOD, cape=[96.0, 97.0, 96.2]),
        dict(best="nopos", worse=["rope", "cape"], not_learned=["cape"], floor_beaten=False),
        ["rope 80.2 (+10.2 ["],
        [],
    ),
    "a variant is better than chance if its interval is": (
        dict(nopos=[21.0, 23.0, 25.0], rope=GOOD, cape=[22.0, 22.1, 22.2]),
        dict(not_learned=["nopos"]),
        ["Not significantly better than always the commonest class (20.0): nopos."],
        [],
    ),
    "of two trainings there are means and differences": (
        dict(nopos=[70.0, 71.0], rope=[80.0, 81.0]),
        dict(trainings=dict(nopos=2, rope=2), worse=[], floor_beaten=None),
        [
            "rope has the best mean, top1 80.5. Not compared, for want of three trainings of each "
            "with scores that differ: nopos 70.5 (−10.0)."
        ],
        ["interval"],
    ),
    "those of three are compared beside one that has fewer": (
        dict(nopos=FLOOR, rope=GOOD, cape=[75.0]),
        dict(floor_beaten=True, worse=["nopos"], not_compared=["cape"]),
        [": cape 75.0 (−5.2)."],
        ["of those with"],
    ),
    "a better mean of fewer is shown and does not win": (
        dict(nopos=FLOOR, rope=GOOD, cape=[99.0]),
        dict(best="rope", not_compared=["cape"]),
        ["rope has the best mean of those with 3 trainings or more, top1 80.2.", "99.0 (+18.8)"],
        [],
    ),
    "beyond four groups of items nothing is claimed for others": (
        dict(groups=4, nopos=GOOD, rope=FLOOR),
        dict(worse=[], worse_on_these_items=["rope"], groups=4, worse_than_floor=[]),
        ["No claim is made beyond these 4 groups of test items: 5 are needed."],
        ["positions hurt"],
    ),
    "five are enough": (
        dict(groups=5, nopos=GOOD, rope=FLOOR),
        dict(worse=["rope"], groups=5),
        ["positions hurt here"],
        ["No claim"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_claims_what_the_scores_show_and_says_it(case):
    given, expected, told, untold = CASES[case]
    of = answer(**given)
    assert {key: of[key] for key in expected} == expected
    said = " ".join(words(of, given.get("chance", 20.0)))
    assert [one for one in told if one not in said] == []
    assert [one for one in untold if one in said] == []


def test_what_is_said_of_a_backbone_is_not_said_of_positions():
    each = {"stock": Sample(GOOD), "cape": Sample(FLOOR)}
    of = of_range(each, True, "stock", None)
    found = {**ANSWER, "floor": "stock", "chance": None, "ranges": {"in testing": of}}
    said = sentences(found)[0]
    assert "better than stock, and worse than it are cape (on these test items)." in said


def claims(of):
    """All that is claimed of variants."""
    worse = "worse", "worse_on_these_items", "worse_than_floor", "worse_than_floor_on_these_items"
    return {key: of[key] for key in (*worse, "floor_beaten")}


@pytest.mark.parametrize("items", [28, 200])
@pytest.mark.parametrize("cape", [[60.0], [99.0], [99.0, 98.0]])
def test_a_variant_of_fewer_trainings_changes_nothing_that_is_claimed_of_the_others(items, cape):
    """Its items are not read, see Result."""
    alone = answer(items=items, nopos=GOOD, rope=FLOOR)
    numbers = {"nopos": items, "rope": items, "cape": 0}
    beside = answer(items=numbers, nopos=GOOD, rope=FLOOR, cape=cape)
    assert claims(beside) == claims(alone)
    assert beside["best"] == alone["best"] == "nopos"
    assert alone["worse"] == ([] if items == 28 else ["rope"])
    assert ("28 test items, 30 are needed" in words(beside)[0]) is (items == 28)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([5.0, 4.0, 3.0, 2.0], "still falling"),
        ([0.05, 0.04, 0.03, 0.02], "still falling"),
        ([50.0, 30.0, 20.0, 19.5, 19.3, 19.2, 19.1, 19.0], "no longer falling"),
        ([5.0, 3.0, 2.0, 1.95, 1.92, 1.90, 1.90, 1.90], "no longer falling"),
        ([5.0, 2.0, 1.5, 2.5], "trained for too long"),
        ([5.0, 4.0], "losses: 5, 4"),
    ],
)
def test_whether_a_training_had_converged_is_told_by_its_last_validation_losses(losses, said):
    assert said in converged(losses)


@pytest.mark.parametrize(
    ("variant", "model"), [("stock", "vit_small_patch16_dinov3"), ("cape", "twin")]
)
def test_what_a_user_of_a_backbone_types_next_has_its_weights(variant, model):
    change = ["variants.cape.options.model=twin", "options.img-size=256"]
    grid = "options.model-kwargs.ref_feat_shape"
    said = typed("my_backbone", variant, *change, f"{grid}=null")
    assert f"create_model('{model}', img_size=256, pretrained=True)" in said
    said = typed("my_backbone", variant, *change, f"{grid}=16")
    assert f"create_model('{model}', img_size=256, ref_feat_shape=16, pretrained=True)" in said


def test_what_a_user_of_timm_types_next_makes_the_model_that_was_trained():
    timm = pytest.importorskip("timm")
    shape = "{patch_size: 2, embed_dim: 64, depth: 1, num_heads: 2}"
    change = ["options.img-size=16", f"options.model-kwargs={shape}"]
    for variant in study.load(find("my_images")).variants:
        model = eval(typed("my_images", variant, *change).split("; ")[1], {"timm": timm})
        assert model.patch_embed.grid_size == (8, 8)
        assert hasattr(model, "cls_token") is (variant != "rope_gap") or model.cls_token is None


def test_what_a_user_of_transformers_types_next_makes_the_model_that_was_trained():
    transformers = pytest.importorskip("transformers")
    from cape_plugins.transformers import augment_positions

    known = {"augment_positions": augment_positions, "tokenizer": range(300)}
    known |= {name: getattr(transformers, name) for name in ("AutoConfig", "AutoModelForCausalLM")}
    for variant, sort in {"rope": "Llama", "alibi": "CapeLlama", "pose_rope": "Llama"}.items():
        told = typed("my_text", variant, "variants.pose_rope.options.augment-options.pose_range=99")
        made = dict(known)
        exec(told, made)
        assert type(made["model"]).__name__ == f"{sort}ForCausalLM"
        assert made["model"].config.hidden_size == 64


def test_losses_have_three_decimals():
    of = answer(higher=False, chance=5.0, nopos=[3.31, 3.32, 3.33], rope=[3.1, 3.11, 3.12])
    found = {**ANSWER, "metric": "loss", "digits": 3, "chance": 5.0, "ranges": {"here": of}}
    assert "rope has the best mean, loss 3.110." in sentences(found)[0]


def typed(name, variant, *changes):
    about = study.load(find(name), changes)
    own = about.variants[variant].options
    return hosts.host(about.host).typed(merge(about.options, own), own, variant)


def test_variants_without_a_score_are_named_and_so_is_an_answer_without_any():
    of = {**answer(nopos=FLOOR, rope=GOOD), "lacking": ["cape"]}
    assert ": cape." in words(of)[0]
    assert len(sentences({**ANSWER, "chance": 20.0, "ranges": {}})) == 1
