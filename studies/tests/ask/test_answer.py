"""What the answer says of given scores, and what a user types next."""

import pandas as pd
import pytest
from scipy import stats

from cape_studies import config as study
from cape_studies import hosts
from cape_studies.answer import of_range, sentences
from cape_studies.plan import merge

GOOD, FLOOR = [80.0, 80.4, 80.2], [70.0, 70.3, 69.8]


def answer(chance=20.0, higher=True, **each):
    return of_range({name: pd.Series(of) for name, of in each.items()}, higher, "nopos", chance)


def words(of, chance=20.0):
    """The paragraph of a range, and those behind it."""
    about = study.load(study.find("my_images"))
    found = {"data": "", "metric": "top1", "chance": chance, "ranges": {"in testing": of}}
    first, *others = sentences(found, about)
    return first, " ".join(others)


def test_best_alike_and_worse_are_named_with_their_difference_and_its_interval_of_all_pairs():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[80.3, 80.1, 80.3])
    assert (of["best"], of["cannot_be_told_from_it"], of["worse"]) == ("cape", ["rope"], ["nopos"])
    apart = of["differences"]["nopos"]
    assert apart["value"] == pytest.approx(-10.2, abs=0.01)
    welch = stats.ttest_ind(FLOOR, [80.3, 80.1, 80.3], equal_var=False)
    assert (apart["low"], apart["high"]) == pytest.approx(
        tuple(welch.confidence_interval(0.95 ** (1 / 3)))
    )
    assert of["floor_beaten"] is True
    said, more = words(of)
    assert said == (
        "In testing: cape has the best mean, top1 80.2. "
        "Not significantly different from it: rope 80.2 (−0.0 [−0.6, +0.6]). "
        "Worse: nopos 70.0 (−10.2 [−11.0, −9.4])."
    )
    assert "for all pairs of a range together" in more


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
        "Not compared, for want of three trainings of each: nopos 70.5 (−10.0).",
        "",
    )


def test_variants_of_three_trainings_are_compared_beside_one_that_has_fewer():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[75.0])
    assert of["floor_beaten"] is True
    assert of["not_compared"] == ["cape"]
    said, _ = words(of)
    assert "Not compared, for want of three trainings of each: cape 75.0 (−5.2)." in said


@pytest.mark.parametrize(
    ("variant", "model"), [("stock", "vit_small_patch16_dinov3"), ("cape", "twin")]
)
def test_what_a_user_of_a_backbone_types_next_has_its_weights(variant, model):
    change = ["variants.cape.options.model=twin", "options.img-size=256"]
    said = typed("my_backbone", variant, *change)
    assert f"create_model('{model}', img_size=256, pretrained=True)" in said


def test_what_a_user_of_timm_types_next_makes_the_model_that_was_trained():
    timm = pytest.importorskip("timm")
    shape = "{patch_size: 2, embed_dim: 64, depth: 1, num_heads: 2}"
    change = ["options.img-size=16", f"options.model-kwargs={shape}"]
    for variant in study.load(study.find("my_images")).variants:
        model = eval(typed("my_images", variant, *change).split("; ")[1], {"timm": timm})
        assert model.patch_embed.grid_size == (8, 8)
        assert hasattr(model, "cls_token") is (variant != "rope_gap") or model.cls_token is None


def typed(name, variant, *changes):
    about = study.load(study.find(name), changes)
    own = about.variants[variant].options
    return hosts.host(about.host).typed(merge(about.options, own), own, variant)


def test_variants_without_a_score_are_named_and_so_is_an_answer_without_any():
    of = {**answer(nopos=FLOOR, rope=GOOD), "lacking": ["cape"]}
    assert ": cape." in words(of)[0]
    about = study.load(study.find("my_images"))
    nothing = {"data": "", "metric": "top1", "chance": 20.0, "ranges": {}}
    assert len(sentences(nothing, about)) == 1
