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
from cape_studies.plan import Plan
from cape_studies.stats import Sample
from cape_studies.yamls import find, merge

ANSWER = {"data": "", "metric": "top1", "digits": 1, "floor": "nopos"}
ANSWER["chance_is"] = "always the commonest class"
GOOD, FLOOR = [80.0, 80.4, 80.2], [70.0, 70.3, 69.8]


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


def test_what_holds_for_these_items_alone_is_not_called_worse():
    of = answer(nopos=[79.0, 79.1, 79.2], rope=GOOD, error=2.0)
    assert (of["worse"], of["worse_on_these_items"]) == ([], ["nopos"])
    assert of["floor_beaten"] is False
    assert "Worse on these test items, perhaps not on others: nopos" in words(of)[0]


def test_where_single_items_are_not_stored_nothing_is_said_of_others():
    of = answer(nopos=FLOOR, rope=GOOD, items=0)
    assert (of["worse"], of["worse_on_these_items"], of["items"]) == ([], ["nopos"], None)
    said, more = words(of)
    assert "Worse on these test items, not tested for others: nopos" in said
    assert "on the same test items" in more


def test_of_few_test_items_nothing_is_claimed_and_how_many_are_needed_is_said():
    of = answer(nopos=FLOOR, rope=GOOD, items=9)
    assert (of["worse"], of["worse_on_these_items"], of["floor_beaten"]) == ([], [], None)
    said = words(of)[0]
    assert "9 test items" in said
    assert "30 are needed" in said
    assert answer(nopos=FLOOR, rope=GOOD, items=30)["worse"] == ["nopos"]


def test_scores_near_their_limit_are_not_compared():
    each = dict(nopos=[60.0, 61.0, 60.5], rope=[99.5] * 3, cape=[98.5, 98.6, 98.5])
    of = answer(error=0.1, away={"nopos": 79.0, "rope": 1.0, "cape": 3.0}, **each)
    assert (of["too_near_the_limit"], of["worse"]) == (["cape"], ["nopos"])
    assert "Too near the limit to compare" in words(of)[0]


def test_several_variants_of_the_best_mean_are_named_together():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[80.2, 80.0, 80.4])
    assert (of["best"], of["same_mean"]) == ("rope", ["cape"])
    assert "The best mean, top1 80.2, is that of several: rope, cape." in words(of)[0]


def test_where_no_positions_are_best_the_answer_says_that_positions_hurt():
    of = answer(nopos=GOOD, rope=FLOOR, cape=[60.0, 61.0, 60.5])
    assert (of["best"], of["floor_beaten"]) == ("nopos", False)
    assert of["worse_than_floor"] == ["rope", "cape"]
    assert "worse than it are rope, cape: positions hurt here" in words(of)[0]


def test_a_variant_that_is_worse_than_no_positions_is_named_where_another_is_better():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[60.0, 61.0, 60.5])
    assert of["worse_than_floor"] == ["cape"]
    assert "Significantly worse than nopos: cape." in words(of)[0]


def test_what_is_said_of_a_backbone_is_not_said_of_positions():
    each = {"stock": Sample(GOOD), "cape": Sample(FLOOR)}
    of = of_range(each, True, "stock", None)
    found = {**ANSWER, "floor": "stock", "chance": None, "ranges": {"in testing": of}}
    said = sentences(found)[0]
    assert "better than stock, and worse than it are cape (on these test items)." in said


def test_a_floor_that_no_variant_is_ahead_of_is_said():
    of = answer(nopos=[80.1, 79.0, 80.9], rope=[80.0, 80.5, 79.9], cape=[80.3, 79.5, 80.3])
    assert of["floor_beaten"] is False
    assert "No variant is significantly better than nopos" in words(of)[0]


def test_the_floor_is_beaten_by_a_variant_that_is_not_the_best():
    """The best one spreads too far to be told from the floor."""
    of = answer(nopos=FLOOR, rope=GOOD, cape=[71.0, 99.0, 89.0])
    assert (of["best"], of["worse"], of["floor_beaten"]) == ("cape", [], True)


def test_less_is_better_where_the_metric_says_so():
    of = answer(higher=False, chance=95.0, nopos=FLOOR, rope=GOOD, cape=[96.0, 97.0, 96.2])
    assert of["best"] == "nopos"
    assert of["worse"] == ["rope", "cape"]
    assert of["differences"]["rope"]["value"] == pytest.approx(10.2, abs=0.1)
    assert of["not_learned"] == ["cape"]


def test_a_variant_is_better_than_chance_if_its_interval_is():
    of = answer(nopos=[21.0, 23.0, 25.0], rope=GOOD, cape=[22.0, 22.1, 22.2])
    assert of["not_learned"] == ["nopos"]
    said = words(of)[0]
    assert "Not significantly better than always the commonest class (20.0): nopos." in said


def test_where_the_best_spreads_too_far_to_be_better_than_chance_another_may_be():
    said, _ = words(
        answer(nopos=[20.0, 21.0, 19.0], rope=[30.0, 31.0, 32.0], cape=[20.0, 90.0, 30.0])
    )
    assert "Not significantly better than always the commonest class (20.0): nopos, cape." in said


def test_an_empty_transcript_has_learned_nothing():
    of = answer(higher=False, chance=100.0, nopos=[100.0] * 3, rope=[99.0, 98.0, 99.5])
    assert of["not_learned"] == ["nopos", "rope"]


def test_of_single_trainings_nothing_is_told_apart():
    of = answer(nopos=[10.0], rope=[90.0])
    assert (of["worse"], of["floor_beaten"], of["not_learned"]) == ([], None, ["nopos"])
    assert "Not compared" in words(of)[0]


def test_of_two_trainings_there_are_means_and_differences_and_nothing_is_told_apart():
    of = answer(nopos=[70.0, 71.0], rope=[80.0, 81.0])
    assert (of["trainings"], of["worse"], of["floor_beaten"]) == ({"nopos": 2, "rope": 2}, [], None)
    assert words(of) == (
        "In testing: rope has the best mean, top1 80.5. "
        "Not compared, for want of three trainings of each with scores that differ: "
        "nopos 70.5 (−10.0).",
        "",
    )


def test_variants_of_three_trainings_are_compared_beside_one_that_has_fewer():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[75.0])
    assert of["floor_beaten"] is True
    assert of["not_compared"] == ["cape"]
    said, _ = words(of)
    assert "Not compared, for want of three trainings of each with" in said
    assert said.endswith(": cape 75.0 (−5.2).")


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


def test_a_better_mean_of_fewer_trainings_is_shown_and_does_not_win():
    said = words(answer(nopos=FLOOR, rope=GOOD, cape=[99.0]))[0]
    assert "rope has the best mean of those with 3 trainings or more, top1 80.2." in said
    assert "cape 99.0 (+18.8)" in said
    assert "of those with" not in words(answer(nopos=FLOOR, rope=GOOD, cape=[9.0]))[0]


def test_where_the_items_of_one_variant_are_not_stored_its_pairs_alone_are_of_these_items():
    numbers = {"nopos": 200, "rope": 200, "cape": 0}
    of = answer(items=numbers, nopos=FLOOR, rope=GOOD, cape=[60.0, 60.5, 60.2])
    assert (of["worse"], of["worse_on_these_items"]) == (["nopos"], ["cape"])
    assert of["of_these_items"] == ["cape"]
    assert (of["worse_than_floor"], of["worse_than_floor_on_these_items"]) == ([], ["cape"])
    said, more = words(of)
    assert "Worse on these test items, not tested for others: cape" in said
    assert "Significantly worse than nopos: cape (on these test items)." in said
    assert "where items are stored of both, else on the same test items" in more


def test_beyond_fewer_than_five_groups_of_items_nothing_is_claimed_for_others():
    of = answer(groups=4, nopos=GOOD, rope=FLOOR)
    assert (of["worse"], of["worse_on_these_items"], of["groups"]) == ([], ["rope"], 4)
    assert of["worse_than_floor"] == []
    said = words(of)[0]
    assert "No claim is made beyond these 4 groups of test items: 5 are needed." in said
    assert "positions hurt" not in said
    five = answer(groups=5, nopos=GOOD, rope=FLOOR)
    assert five["worse"] == ["rope"]
    assert "No claim" not in words(five)[0]


def test_what_is_not_significantly_worse_than_the_floor_is_not_called_worse():
    """Two variants below it: one by ten points, one by less than their trainings spread."""
    of = answer(nopos=[80.0, 81.0, 82.0], rope=[70.0, 71.0, 72.0], cape=[79.0, 81.0, 80.0])
    assert (of["worse_than_floor"], of["floor_beaten"]) == (["rope"], False)
    assert "worse than it are rope: positions hurt here" in words(of)[0]


def test_what_is_near_a_limit_with_the_floor_is_not_compared_with_it():
    each = dict(nopos=[99.5, 99.6, 99.5], rope=[98.5, 98.6, 98.5], cape=[60.0, 61.0, 60.5])
    of = answer(error=0.1, away={"nopos": 1.0, "rope": 3.0, "cape": 79.0}, **each)
    assert of["worse_than_floor"] == ["cape"]


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


@pytest.mark.parametrize(
    ("name", "variant", "sizes"),
    [
        ("my_sentences", "rope", ["--pos rope", "--encoder-layers 3", "--decoder-embed-dim 128"]),
        ("my_recordings", "rope", ["pos: rope", "output_size: 128", "num_blocks: 4"]),
    ],
)
def test_what_a_user_types_next_has_the_sizes_of_the_model_that_was_trained(
    tmp_path, name, variant, sizes
):
    pytest.importorskip({"my_sentences": "fairseq", "my_recordings": "espnet2"}[name])
    plan = Plan(find(name), out=tmp_path)
    plan.prepare(lambda one: None)
    run = next(run for run in plan.runs() if run.variant == variant)
    assert [size for size in sizes if size not in run.typed()] == []


def typed(name, variant, *changes):
    about = study.load(find(name), changes)
    own = about.variants[variant].options
    return hosts.host(about.host).typed(merge(about.options, own), own, variant)


def test_variants_without_a_score_are_named_and_so_is_an_answer_without_any():
    of = {**answer(nopos=FLOOR, rope=GOOD), "lacking": ["cape"]}
    assert ": cape." in words(of)[0]
    assert len(sentences({**ANSWER, "chance": 20.0, "ranges": {}})) == 1
