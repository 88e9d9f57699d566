"""A variant of another package, FIRE of examples/cape-fire."""

import pytest
import timm


def test_it_is_in_the_lists_of_models():
    for size, names in (("tiny_patch16", "vit_tiny_patch16_*fire_224"), ("", "*vit_*_fire_gap")):
        found = timm.list_models(names)
        assert {name.split("_fire")[0].split("_")[-1] for name in found} == {"patch16", "cape"}
        assert all(size in name for name in found)


def test_its_options_are_a_models_options(create, images):
    model = create("cape_fire", fire_width=8, fire_threshold=5.0, max_global_scale=1.2)
    assert model.position.options.items() >= dict(fire_threshold=5.0, max_global_scale=1.2).items()
    shapes = {one.shape for name, one in model.named_parameters() if "function.0.weight" in name}
    assert shapes == {(8, 1)}
    assert model(images(2, 3, 64, 64)).isfinite().all()
    with pytest.raises(ValueError, match=r"fire_width .*cape_fire"):
        create("alibi", fire_width=8)
    with pytest.raises(ValueError, match="fire_width"):
        create("fire", fire_width=0)
    with pytest.raises(ValueError, match="fire_width 8"):
        create("fire").load_state_dict(create("fire", fire_width=8).state_dict())


def test_the_functions_are_not_all_alike_at_first(create):
    # timm draws its linear layers anew, with biases of 0
    model = create("fire", fresh=True)
    biases = [p for name, p in model.named_parameters() if name.endswith("function.0.bias")]
    assert len(biases) == 2
    assert all(bias.abs().max() > 0 for bias in biases)
