"""The YAML of a study: what it may say, and what is refused before anything runs."""

import pytest
import yaml
from omegaconf import OmegaConf

from cape_studies import config, plan, yamls
from cape_studies.asked import StudyOptions

STUDY = {
    "title": "small",
    "host": "timm",
    "protocol": "none",
    "cost": "nothing",
    "needs": {"photos": {"what": "photos", "source": "here", "layout": "*.jpg"}},
    "prepare": {"images": {"module": "json.tool", "arguments": ["{photos}", "{out}"]}},
    "options": {
        "data-dir": "{images}",
        "model-kwargs": {"depth": 2, "embed_dim": 8},
        "side": "${facts:side}",
    },
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


def test_a_study_from_windows_is_read_and_one_in_utf16_is_named(path):
    (path.parent / "mine.yaml").write_text("defaults: [small, _self_]\ntitle: other\n")
    for name in ("small", "mine"):
        file = path.with_name(f"{name}.yaml")
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert load(path.with_name("mine.yaml")).title == "other"
    text = path.read_text("utf-8")
    path.write_text(text, "utf-16")  # which Hydra reads, as a default of the other
    with pytest.raises(ValueError, match=r"mine\.yaml, or a YAML that it names: 'utf-8' codec"):
        load(path.with_name("mine.yaml"))


@pytest.fixture
def path(tmp_path):
    return write(tmp_path, STUDY)


def write(folder, content, name="small"):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def load(path, *changes, **more):
    return config.load(path, changes, **more)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("+optoins.epochs=1", "optoins: Extra inputs are not permitted"),
        ("host=jax", "host: no 'jax'; there is espnet, fairseq, timm"),
        ("seeds=[1,1]", "seeds has 1 twice"),
        ("seeds=[]", "seeds: List should have at least 1 item"),
        ("run=[nopos]", "run: no 'nopos'; there is cape, sinpos"),
        ("report.evaluation=bins", "report.evaluation: no 'bins'; there is sizes"),
        ("+variants.cape.after=deit", "variants.cape.after: no 'deit'"),
        ("+variants.cape.evaluate.tta={}", "variants.cape.evaluate: no 'tta'"),
        ("+prepare.images.script=x.py", "x.py does not exist"),
        ("seed=[1]", "there is no seed: the study has cost, "),
        ("seeds=[1", "at input '[1'"),
        ("+options.side=9", "there is options.side already: options.side=…"),
        ("+options.x=${nowhere}", "Interpolation key 'nowhere' not found"),
    ],
)
def test_what_does_not_fit_is_named(path, change, message):
    with pytest.raises(ValueError, match=r"small\.yaml: ") as error:
        load(path, change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_changes_are_hydras_and_null_takes_a_part_away(path):
    changes = ["options.model-kwargs.depth=3", "seeds=[1,2]", "~prepare", "options.data-dir=null"]
    one = load(path, *changes, "evaluations.sizes.options.data='{photos}'")
    assert one.options["model-kwargs"] == {"depth": 3, "embed_dim": 8}
    assert one.options["data-dir"] is None
    assert one.seeds == [1, 2]
    assert one.prepare == {}
    assert list(load(path, "variants.cape=null").variants) == ["sinpos"]
    assert load(path, "+variants.cape.evaluate.tta=null").variants["cape"].evaluate == {}


def test_quick_takes_the_changes_of_the_study_and_the_command_line_has_the_last_word(path):
    assert load(path, quick=True).seeds == [7]
    assert load(path, "seeds=[3]", quick=True).seeds == [3]
    assert load(path).seeds == [0]


def test_a_study_is_composed_of_others_beside_it_and_in_the_checkout(path):
    more = {"defaults": ["small", "_self_"], "title": "other", "variants": {"nopos": {}}}
    one = load(write(path.parent, more, "other"))
    assert one.title == "other"
    assert list(one.variants) == ["cape", "sinpos", "nopos"]
    digits = load(write(path.parent, {"defaults": ["demo_timm", "_self_"], "seeds": [3]}, "mine"))
    assert (
        digits.trainer
        == yamls.find("demo_timm").parents[2] / "integrations/timm/train_lightning.py"
    )
    with pytest.raises(ValueError, match=r"bad\.yaml: .*Could not load 'nowhere'"):
        load(write(path.parent, {"defaults": ["nowhere", "_self_"]}, "bad"))


def test_a_study_runs_the_variants_that_it_lists_and_knows_those_that_they_start_from(path):
    variants = {"cape": {"after": "nopos"}, "nopos": {"after": "more"}, "more": {}, "other": {}}
    one = load(write(path.parent, {**STUDY, "variants": variants, "run": ["cape"], "report": {}}))
    assert one.run == ["cape"]
    assert list(one.variants) == ["cape", "nopos", "more"]


# --- sets, names, the checkout's own


def test_a_set_is_all_its_studies_with_the_same_changes(path):
    write(path.parent, {**STUDY, "needs": {}, "prepare": {}, "options": {}}, "other")
    for name in ("small", "other"):
        changes = {"needs": {}, "prepare": {}, "options": {}}
        changes["evaluations"] = {"sizes": {"metrics": {"top1": "higher"}}}
        write(path.parent, {**STUDY, **changes}, name)
    file = write(path.parent, {"title": "both", "studies": ["small", "other"]}, "both")
    plans, problems = StudyOptions(study=str(file), overrides=["seeds=[4]"]).plans()
    assert [(plan.name, plan.study.seeds) for plan in plans] == [("small", [4]), ("other", [4])]
    assert not problems
    with pytest.raises(ValueError, match=r"both\.yaml: .*(Field required|Extra inputs)"):
        load(write(path.parent, {"title": "both", "studys": []}, "both"))
    file = write(path.parent, {"title": "both", "studies": ["nowhere"]}, "both")
    with pytest.raises(ValueError, match=r"nowhere\.yaml cannot be read"):
        StudyOptions(study=str(file)).plans()


def test_where_the_baseline_does_not_run_the_first_variant_is_it(path):
    assert load(path, "run=[cape]").report.baseline == "cape"
    assert load(path).report.baseline == "sinpos"


def test_a_name_is_found_in_a_checkout_and_an_unknown_one_is_told_the_others(monkeypatch, path):
    assert yamls.find("cifar10").name == "cifar10.yaml"
    assert yamls.find(str(path)) == path
    with pytest.raises(ValueError, match=r"no study 'cifar100' in .* cifar10, .*--list"):
        yamls.find("cifar100")


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [\n", None])
def test_what_is_no_yaml_mapping_is_refused(tmp_path, content):
    file = tmp_path / "x.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"x\.yaml"):
        config.load(file)


def test_a_variant_of_another_package_runs_where_the_options_say_what_a_variant_is(path):
    listed = load(yamls.find("my_images"), "run=[rope,fire]")
    assert list(listed.variants) == listed.run == ["rope", "fire"]
    assert listed.variants["fire"].options == {}
    with pytest.raises(ValueError, match=r"run: no 'fir'; there is .*, fire, nopos"):
        load(yamls.find("my_images"), "run=[rope,fir]")
    with pytest.raises(ValueError, match="run: no 'fire'; there is cape, sinpos"):
        load(path, "run=[cape,fire]")  # its options would be those of nothing


# --- what a study may not reach


@pytest.mark.parametrize("part", ["needs", "prepare", "variants", "evaluations"])
@pytest.mark.parametrize("name", ["/outside", "a/../../outside", "a\\b"])
def test_what_a_study_names_stays_in_out(path, part, name):
    content = {**STUDY, part: {name: next(iter(STUDY[part].values()))}, "report": {}}
    with pytest.raises(ValueError, match=rf"small\.yaml: {part}\..*slashes") as error:
        load(write(path.parent, content))
    assert repr(name) in str(error.value)


def test_a_studys_report_stays_in_out(tmp_path):
    file = write(tmp_path, STUDY, "..")
    with pytest.raises(ValueError, match=r"\.\.\.yaml is named '\.\.'"):
        yamls.find(str(file))
    assert yamls.find(str(write(tmp_path, STUDY, "a..b"))).stem == "a..b"


@pytest.mark.parametrize("file", ["/x.pth", "a/../../x.pth"])
def test_the_tested_checkpoint_is_one_of_the_training(path, file):
    with pytest.raises(ValueError, match=r"checkpoint: .*x\.pth"):
        load(path, f"+checkpoint={file}")
    assert load(path, "+checkpoint=a/x..pth").checkpoint == "a/x..pth"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("options.x", "${oc.env:SECRET}"),
        ("report.x_label", "${${protocol}:SECRET}"),
        ("quick.options.x", "${oc.env:SECRET}"),
    ],
)
def test_a_study_does_not_read_the_environment(path, monkeypatch, key, value):
    monkeypatch.setenv("SECRET", "s3cret")
    content = {**STUDY, "protocol": "oc.env"}
    at = content
    for part in key.split(".")[:-1]:
        at[part] = dict(at[part])
        at = at[part]
    at[key.rpartition(".")[2]] = value
    with pytest.raises(ValueError, match=r"oc\.env:SECRET.*KEY=VALUE") as error:
        load(write(path.parent, content), quick=True)
    assert "s3cret" not in str(error.value)
    with pytest.raises(ValueError, match=r"oc\.env:SECRET"):
        load(write(path.parent, STUDY), "+options.x=${oc.env:SECRET}")
    # others in this process still may
    assert OmegaConf.to_object(OmegaConf.create({"a": "${oc.env:SECRET}"})) == {"a": "s3cret"}


def test_a_place_is_filled_as_text(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    reach = "{trained.exists.__func__.__globals__[os].environ[SECRET]}"
    with pytest.raises(ValueError, match="without a dot"):
        plan.fill({"x": [reach]}, {"trained": tmp_path})
    assert plan.fill({"x": ["{trained}-{seed}"]}, {"trained": tmp_path, "seed": 3}) == {
        "x": [f"{tmp_path}-3"]
    }
