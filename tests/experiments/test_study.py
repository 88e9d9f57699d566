"""The YAML of a study: what it may say, and what is refused before anything runs."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("pydantic")

from cape_plugins.experiments import study

STUDY = {
    "title": "small",
    "host": "timm",
    "protocol": "none",
    "cost": "nothing",
    "needs": {"photos": {"what": "photos", "source": "here", "layout": "*.jpg"}},
    "prepare": {"images": {"module": "json.tool", "arguments": ["{photos}", "{out}"]}},
    "options": {"data-dir": "{images}", "model-kwargs": {"depth": 2, "embed_dim": 8}},
    "variants": {"cape": {"options": {"model": "vit_{variant}"}}, "sinpos": {}},
    "seeds": [0],
    "evaluations": {"sizes": {"options": {"data": "{images}"}, "metrics": {"top1": "higher"}}},
    "report": {
        "baseline": "sinpos",
        "evaluation": "sizes",
        "metric": "top1",
        "x_label": "pixels",
        "y_label": "%",
        "title": "small",
    },
    "quick": {"options": {"epochs": 1}, "seeds": [7]},
}


@pytest.fixture
def path(tmp_path):
    return write(tmp_path, STUDY)


def write(folder, content, name="small"):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def load(path, *changes, **more):
    (one,) = study.load(path, changes, **more)
    return one


def test_a_study_has_the_name_of_its_file(path):
    assert load(path).name == "small"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optoins.epochs=1", "optoins: Extra inputs are not permitted"),
        ("variants.cape.option.x=1", "variants.cape.option: Extra inputs"),
        ("host=jax", "host: Input should be 'timm', 'fairseq' or 'espnet'"),
        ("seeds=[]", "seeds: List should have at least 1 item"),
        ("report.baseline=nopos", "report.baseline: no 'nopos'; there is cape, sinpos"),
        ("report.evaluation=bins", "report.evaluation: no 'bins'; there is sizes"),
        ("report.metric=top5", "report.metric: no 'top5'; there is top1"),
        ("variants.cape.after=deit", "variants.cape.after: no 'deit'"),
        ("variants.cape.evaluate.tta={}", "variants.cape.evaluate: no 'tta'"),
        ("evaluations.sizes.metrics.top1=best", "Input should be 'higher' or 'lower'"),
        ("options.x='{nowhere}'", "options: no 'nowhere'; there is after"),
        ("prepare.images.arguments=['{images}']", "prepare.images: no 'images'"),
        ("prepare.images.script=x.py", "give either script or module"),
        ("needs.out={what: a, source: b, layout: c}", "'out' of needs or prepare must be a word"),
        ("protocol=null", "protocol: Field required"),
    ],
)
def test_what_does_not_fit_is_named(path, change, message):
    with pytest.raises(ValueError, match=r"small\.yaml: ") as error:
        load(path, change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["seeds", "=1", "seeds=[1"])
def test_a_change_that_is_none_is_refused(path, change):
    with pytest.raises(ValueError, match="--set takes KEY=VALUE"):
        load(path, change)


def test_changes_reach_into_mappings_and_null_takes_a_key_away(path):
    one = load(path, "options.model-kwargs.depth=3", "options.data-dir=null", "seeds=[1, 2]")
    assert one.options == {"model-kwargs": {"depth": 3, "embed_dim": 8}}
    assert one.seeds == [1, 2]


def test_quick_takes_the_changes_of_the_study_and_set_has_the_last_word(path):
    assert load(path, quick=True).seeds == [7]
    assert load(path, "seeds=[3]", quick=True).seeds == [3]
    assert load(path).seeds == [0]


def test_a_study_may_extend_another(path):
    more = {"extends": "small.yaml", "title": "other", "variants": {"cape": None, "nopos": {}}}
    one = load(write(path.parent, more, "other"))
    assert (one.name, one.title, list(one.variants)) == ("other", "other", ["sinpos", "nopos"])


def test_a_study_may_take_only_some_variants_of_the_one_it_extends_and_add_its_own(path):
    more = {"extends": "small.yaml", "only": ["sinpos"], "variants": {"nopos": {}}}
    assert list(load(write(path.parent, more, "other")).variants) == ["sinpos", "nopos"]
    with pytest.raises(ValueError, match=r"other\.yaml: only: no 'rope'; there is .*sinpos"):
        load(write(path.parent, more | {"only": ["rope"]}, "other"))
    with pytest.raises(ValueError, match=r"only: must list variants of small\.yaml, got 'sinpos'"):
        load(write(path.parent, more | {"only": "sinpos"}, "other"))


def test_a_set_is_all_its_studies_with_the_same_changes(path):
    file = write(path.parent, {"title": "both", "studies": ["small", "small"]}, "both")
    assert [one.seeds for one in study.load(file, ["seeds=[4]"])] == [[4], [4]]
    file = write(path.parent, {"title": "both", "studys": []}, "both")
    with pytest.raises(ValueError, match=r"both\.yaml: .*(Field required|Extra inputs)"):
        study.load(file)


def test_paths_are_those_of_the_yaml(path):
    one = load(path, "recipe=../recipe.yaml")
    assert one.recipe == path.parent.parent / "recipe.yaml"


def test_a_name_is_found_in_a_checkout_and_an_unknown_one_is_told_the_others(monkeypatch, path):
    assert study.find("cifar10").name == "cifar10.yaml"
    assert study.find(str(path)) == path
    with pytest.raises(ValueError, match=r"no 'cifar100'; there is .*cifar10, .*demo"):
        study.find("cifar100")


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [\n", None])
def test_what_is_no_yaml_mapping_is_refused(tmp_path, content):
    file = tmp_path / "x.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"x\.yaml"):
        study.load(file)


@pytest.mark.parametrize("path", study.names(), ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True])
def test_every_study_of_the_checkout_is_valid_and_its_files_exist(path, quick):
    for one in study.load(path, quick=quick):
        scripts = [step.script for step in one.prepare.values()]
        scripts += [each.script for each in one.evaluations.values()]
        recipes = [each.recipe for each in one.variants.values()]
        for file in [one.recipe, one.trainer, *scripts, *recipes]:
            assert file is None or Path(file).is_file()


def test_a_variant_of_an_extending_study_may_leave_out_an_evaluation(path):
    more = {"extends": "small.yaml", "variants": {"nopos": {"evaluate": {"sizes": None}}}}
    one = load(write(path.parent, more, "other"))
    assert one.variants["nopos"].evaluate == {"sizes": None}
