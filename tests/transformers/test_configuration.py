"""Options are fields of config.json; what is wrong is refused when a configuration is made."""

import json

import pytest
import transformers

import cape_plugins.transformers  # noqa: F401 - registers


def config(sizes, **options):
    return transformers.AutoConfig.for_model("cape_llama", **sizes, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(pos="nope"), "nope"),
        (dict(pos="alibi", max_global_scale=1.2), "max_global_scale"),
        (dict(pos="cape_rope", max_global_scale=0.5), "max_global_scale"),
        (dict(pos="pose_rope", pose_range=-1.0), "pose_range"),
        (dict(pos="cape", mean_normalize=True), "mean_normalize"),
        (dict(pos="rope", hidden_size=20, num_attention_heads=4), "rotary"),
    ],
)
def test_what_is_wrong_is_refused(sizes, options, named):
    with pytest.raises(ValueError, match=named):
        config(sizes | options)


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (dict(rope_type="yarn", factor=2.0), "augment_positions"),
        (dict(rope_type="default", rope_theta=5e5), "rope_base"),
    ],
)
def test_rope_parameters_that_say_something_else_are_refused_when_a_model_is_built(
    sizes, theirs, named, tmp_path
):
    with pytest.raises(ValueError, match=named):
        transformers.AutoModelForCausalLM.from_config(config(sizes, rope_parameters=theirs))
    transformers.LlamaConfig(**sizes, rope_parameters=theirs).save_pretrained(tmp_path)
    if theirs["rope_type"] == "default":
        kind = type(config(sizes))
        given = kind.from_pretrained(tmp_path, pos="rope", rope_base=5e5)
        transformers.AutoModelForCausalLM.from_config(given)


def test_options_are_in_config_json(sizes, tmp_path):
    made = config(sizes, pos="random_rope", random_range=[5.0, 300.0])
    made.save_pretrained(tmp_path)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["model_type"] == "cape_llama"
    assert (kept["pos"], kept["random_range"]) == ("random_rope", [5.0, 300.0])
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_config(again)
    assert model.model.positions.options["random_range"] == (5.0, 300.0)


def test_config_overrides_of_run_clm(sizes):
    made = config(sizes)
    made.update_from_string("pos=cape,max_global_shift=7.5,relpos_context=3,num_hidden_layers=1")
    with pytest.raises(ValueError, match="relpos_context"):
        transformers.AutoModelForCausalLM.from_config(made)
    made.update_from_string("relpos_context=150")
    model = transformers.AutoModelForCausalLM.from_config(made)
    assert model.model.positions.options["max_global_shift"] == 7.5


def test_another_packages_options_are_fields_too(sizes):
    made = config(sizes, pos="fire", fire_width=8)
    model = transformers.AutoModelForCausalLM.from_config(made)
    assert model.model.layers[1].self_attn.positional.fire_width == 8
