"""Options are fields of config.json; what is wrong is refused when a configuration is made."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers

import cape_plugins.transformers  # noqa: F401 - registers
from cape_plugins import PositionalAttention, Variant, option, register_variant


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
        (dict(max_global_scal=1.1), "did you mean max_global_scale"),
        (dict(relpos_contxt=9.0), "did you mean relpos_context"),
    ],
)
def test_what_is_wrong_is_refused(sizes, options, named):
    with pytest.raises(ValueError, match=named):
        config(sizes | options)


def built(made):
    model = transformers.AutoModel.from_config(made)
    return model.positions.options["rope_base"], model.config.rope_parameters["rope_theta"]


def test_a_scaling_is_refused_when_a_model_is_built(sizes):
    scaled = config(sizes, rope_parameters=dict(rope_type="yarn", factor=2.0))
    with pytest.raises(ValueError, match="augment_positions"):
        built(scaled)


@pytest.mark.parametrize("pos", ["rope", "cape_rope"])
@pytest.mark.parametrize(
    "given",
    [
        dict(rope_base=5e5),
        dict(rope_theta=5e5),
        dict(rope_base=5e5, rope_theta=5e5),
        dict(rope_base=5e5, rope_parameters=None),
        dict(rope_parameters=dict(rope_type="default", rope_theta=5e5)),
    ],
)
def test_one_base_of_rotations_by_either_name(sizes, tmp_path, pos, given):
    made = config(sizes, pos=pos, **given)
    assert made.rope_parameters["rope_theta"] == 5e5  # before a model is built
    assert (made.rope_base, built(made)) == (5e5, (5e5, 5e5))
    made.save_pretrained(tmp_path)
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (again.rope_base, built(again)) == (5e5, (5e5, 5e5))


def test_without_a_base_it_is_transformers_default(sizes):
    assert built(config(sizes, pos="rope")) == (1e4, 1e4)
    assert config(sizes, pos="alibi", rope_theta=5e5).pos == "alibi"  # which turns nothing


def test_two_bases_are_refused_in_one_form(sizes, tmp_path):
    with pytest.raises(ValueError, match=r"rope_base.*rope_theta"):
        config(sizes, rope_base=5e5, rope_theta=2e5)
    transformers.LlamaConfig(**sizes, rope_theta=5e5).save_pretrained(tmp_path)
    kind = type(config(sizes))
    assert built(kind.from_pretrained(tmp_path)) == (5e5, 5e5)
    assert built(kind.from_pretrained(tmp_path, rope_base=5e5)) == (5e5, 5e5)
    with pytest.raises(ValueError, match=r"rope_base.*rope_theta"):
        built(kind.from_pretrained(tmp_path, rope_base=1e4))


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        (dict(pos="pose_rope", pose_range=np.int64(90)), 90),
        (dict(pos="cape_rope", max_global_scale=np.float64(1.5)), 1.5),
        (dict(pos="random_rope", random_range=(0, np.int64(90))), [0, 90]),
    ],
)
def test_numbers_of_numpy_are_kept_as_pythons(sizes, tmp_path, option, kept):
    (name,) = option.keys() - {"pos"}
    config(sizes, **option).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())[name] == kept


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
    made.update_from_string("pos=rope,max_global_shift=5.0,rope_base=500000.0")
    assert built(made) == (5e5, 5e5)


@pytest.mark.parametrize("kind", ["cape_llama", "cape_eurobert"])
def test_defaults_are_the_papers_and_llamas(sizes, kind):
    """Δ and ε of the paper's translation (section 4.3); ranges are Llama's length."""
    made = transformers.AutoConfig.for_model(kind, **sizes)
    found = [made.max_global_shift, made.max_local_shift, made.random_range, made.pose_range]
    assert found == [5.0, 0.5, 2048.0, 2048.0]
    assert (made.pos, made.relpos_context, made.rope_base) == ("cape_rope", 150.0, 10_000.0)
    assert not hasattr(made, "alibi_unit")
    assert hasattr(made, "spread") == (kind == "cape_eurobert")


@torch.no_grad()
def test_options_of_another_package_are_fields_too(eight, create, tokens, tmp_path):
    """Registered long after the fields of configurations were made."""
    model = create("rotations", num_key_value_heads=4, rotations_first=3.0)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.model.positions.options["rotations_first"] == 3.0
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    with pytest.raises(ValueError, match="rotations_first"):
        create("alibi", rotations_first=3.0)


def test_a_cell_that_runs_again_with_another_default_has_that(own_table, create):
    for first in (1.0, 3.0):

        @dataclass(eq=False, repr=False)
        class Cell(PositionalAttention):
            cell_first: float = option(first, "a number")

        register_variant("cell", Variant(attends=Cell, axes=(1,)))
        assert create("cell").model.positions.options["cell_first"] == first


def test_an_option_with_the_name_of_a_field_of_llamas_is_refused(own_table, create):
    @dataclass(eq=False, repr=False)
    class Clash(PositionalAttention):
        mlp_bias: float = option(1.0, "a number")

    register_variant("clash", Variant(attends=Clash, axes=(1,)))
    with pytest.raises(ValueError, match="mlp_bias"):
        create("clash")
