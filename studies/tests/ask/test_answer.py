"""What the answer says of given scores, and what a user types next."""

import numpy as np
import pytest

from cape_studies.ask.answer import Group, adjusted, of_range, sentences, typed
from cape_studies.experiments import study

GOOD, FLOOR = [80.0, 80.4, 80.2], [70.0, 70.3, 69.8]


def answer(chance=20.0, higher=True, **each):
    groups = {name: Group(np.array(scores)) for name, scores in each.items()}
    return of_range(groups, higher, "nopos", chance)


def words(of):
    about = study.load(study.find("my_images"))[0]
    ranges = {"in testing": {**of, "without_a_score": []}}
    return sentences({"data": "", "metric": "top1", "ranges": ranges, "cost": {}}, about)[0]


def test_p_values_after_holm_are_those_of_its_definition():
    # sorted 0.01, 0.02, 0.03, 0.5 × 4, 3, 2, 1, none below the one before
    assert adjusted([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]


def test_best_alike_and_worse_are_named_with_by_how_much():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[80.3, 80.1, 80.3])
    assert (of["best"], of["cannot_be_told_from_it"]) == ("cape", ["rope"])
    assert of["worse"]["nopos"]["by"] == pytest.approx(10.2, abs=0.01)
    assert of["worse"]["nopos"]["p"] < 0.001
    assert of["floor_beaten"] is True
    assert words(of) == (
        "In testing: cape has the best mean, top1 80.2. "
        "Not significantly different from it: rope (80.2). Worse: nopos by 10.2 (p < 0.001)."
    )


def test_a_floor_that_is_not_beaten_is_said():
    of = answer(nopos=[80.1, 79.0, 80.9], rope=[80.0, 80.5, 79.9], cape=[80.3, 79.5, 80.3])
    assert of["floor_beaten"] is False
    assert "nopos is not beaten" in words(of)


def test_less_is_better_where_the_metric_says_so():
    of = answer(higher=False, chance=95.0, nopos=FLOOR, rope=GOOD, cape=[96.0, 97.0, 96.2])
    assert of["best"] == "nopos"
    assert list(of["worse"]) == ["rope", "cape"]
    assert of["not_learned"] == ["cape"]


def test_what_is_near_chance_has_not_learned():
    of = answer(nopos=[12.0, 11.0, 10.0], rope=GOOD)
    assert of["not_learned"] == ["nopos"]
    assert "Near chance, so not learned: nopos." in words(of)


def test_where_none_has_learned_positions_are_not_judged():
    said = words(answer(nopos=[11.0, 12.0, 10.0], rope=[12.0, 13.0, 12.0]))
    assert "no variant has learned" in said
    assert "not beaten" not in said


def test_of_single_trainings_nothing_is_told_apart():
    of = answer(nopos=[10.0], rope=[90.0])
    assert (of["worse"], of["floor_beaten"]) == ({}, None)
    assert "With a single training" in words(of)


def test_of_two_trainings_there_are_means_and_differences_and_nothing_is_told_apart():
    of = answer(nopos=[70.0, 71.0], rope=[80.0, 81.0])
    assert (of["trainings"], of["worse"], of["floor_beaten"]) == ({"nopos": 2, "rope": 2}, {}, None)
    assert words(of) == (
        "In testing: rope has the best mean, top1 80.5. Means of two trainings each. "
        "Behind it: nopos by 10.0 (70.5). "
        "With fewer than three trainings of a variant no difference is significant."
    )


def test_variants_of_three_trainings_are_compared_beside_one_that_has_fewer():
    of = answer(nopos=FLOOR, rope=GOOD, cape=[75.0])
    assert of["floor_beaten"] is True
    assert of["not_compared"] == ["cape"]
    assert "Trainings: nopos 3, rope 3, cape 1." in words(of)


def test_what_may_have_diverged_has_its_mean_and_is_not_compared():
    groups = {"nopos": Group(np.array(FLOOR)), "rope": Group(np.array(GOOD))}
    groups["cape"] = Group(np.array([90.0, 91.0]), None, 1)
    of = of_range(groups, True, "nopos", 20.0)
    assert (of["best"], of["means"]["cape"]) == ("rope", 90.5)
    assert "may have diverged: cape (90.5, without 1 of 3 trainings)." in words(of)


def test_of_one_variant_there_is_its_number():
    assert words(answer(nopos=[70.0])).startswith("In testing: only nopos has scores, top1 70.0")


@pytest.mark.parametrize(
    ("name", "variant", "expected"),
    [
        ("my_sentences", "cape", "--arch cape_transformer_tiny --pos cape"),
        ("my_recordings", "rope", "{encoder: cape_transformer, encoder_conf: {pos: rope}}"),
    ],
)
def test_what_a_user_types_next(name, variant, expected):
    assert typed(study.load(study.find(name))[0], variant) == expected


@pytest.mark.parametrize(
    ("variant", "model"), [("stock", "vit_small_patch16_dinov3"), ("cape", "twin")]
)
def test_what_a_user_of_a_backbone_types_next_has_its_weights(variant, model):
    change = ["variants.cape.options.model=twin", "options.img-size=256"]
    (about,) = study.load(study.find("my_backbone"), change)
    assert f"create_model('{model}', img_size=256, pretrained=True)" in typed(about, variant)


def test_what_a_user_of_timm_types_next_makes_the_model_that_was_trained():
    timm = pytest.importorskip("timm")
    shape = "{patch_size: 2, embed_dim: 64, depth: 1, num_heads: 2}"
    change = ["options.img-size=16", f"options.model-kwargs={shape}"]
    (about,) = study.load(study.find("my_images"), change)
    for variant in about.variants:
        model = eval(typed(about, variant).split("; ")[1], {"timm": timm})
        assert model.patch_embed.grid_size == (8, 8)
        assert hasattr(model, "cls_token") is (variant != "rope_gap") or model.cls_token is None
