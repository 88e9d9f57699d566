"""A mark stands among weights: what arithmetic does to weights must not change what it says."""

import itertools
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cape_plugins.mark import SLOTS, VariantMark
from cape_plugins.variants import VARIANTS, names

VALUES = {name: 0.3 + 1.1632 * place for place, name in enumerate(SLOTS) if name != "square"}


def mark(pos: str, **changed: float) -> VariantMark:
    return VariantMark(pos, {**VALUES, **changed}, "--{}".format)


def moved(state: torch.Tensor, decay: float, steps: int, dtype=torch.float32) -> torch.Tensor:
    """An exponential moving average of a checkpoint that never changes."""
    average, state = state.to(dtype), state.to(dtype)
    for _ in range(steps):
        average = average.mul(decay).add(state, alpha=1 - decay)
    return average


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING)
    return caplog


@given(
    pos=st.sampled_from(list(VARIANTS)),
    decay=st.sampled_from([0.9, 0.99, 0.995, 0.999, 0.9995, 0.9998, 0.9999]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
@settings(deadline=None, max_examples=60)
def test_a_moving_average_of_one_training_is_of_that_training(pos, decay, dtype):
    one, other = mark(pos), mark(pos)
    found = []
    handler = logging.Handler()
    handler.emit = found.append
    logging.getLogger().addHandler(handler)
    try:
        other.set_extra_state(moved(one.get_extra_state(), decay, 2000, dtype))
    finally:
        logging.getLogger().removeHandler(handler)
    assert not found


@pytest.mark.parametrize("pos", names(1))
@pytest.mark.parametrize("weights", [[1 / 3] * 3, [0.1] * 10, [0.7, 0.2, 0.1], [1.3, -0.3]])
def test_soups_and_averages_of_one_training_are_of_that_training(pos, weights, said):
    state = mark(pos).get_extra_state()
    mark(pos).set_extra_state(sum(state * weight for weight in weights))
    assert not said.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_checkpoint_that_was_cast_is_of_its_training(dtype, said):
    mark("cape").set_extra_state(mark("cape").get_extra_state().to(dtype))
    assert not said.text


def test_averages_of_two_variants_are_told_as_such():
    first, second = mark("cape").get_extra_state(), mark("relpos").get_extra_state()
    for share in (0.5, 0.1, 0.9, 0.03):
        mixed = share * first + (1 - share) * second
        for pos in ("cape", "relpos", "sinpos"):
            with pytest.raises(
                ValueError, match=r"of neither cape nor relpos: were .* averaged"
            ) as e:
                mark(pos).set_extra_state(mixed)
            assert "unknown" not in str(e.value)


def test_averages_whose_mean_is_a_third_variants_number_are_of_no_variant():
    """The mean of sinpos and relpos is cape's number; 23 of the 91 pairs have such a mean."""
    numbers = {VARIANTS[pos].number: pos for pos in names(1)}
    pairs = itertools.combinations(names(1), 2)
    means = [(a, b, (VARIANTS[a].number + VARIANTS[b].number) / 2) for a, b in pairs]
    third = [(a, b, numbers[mean]) for a, b, mean in means if mean in numbers]
    assert ("sinpos", "relpos", "cape") in third
    for first, second, middle in third:
        mixed = (mark(first).get_extra_state() + mark(second).get_extra_state()) / 2
        for state in (mixed, mixed.bfloat16()):
            with pytest.raises(ValueError, match=r"of no single variant: were .* averaged"):
                mark(middle).set_extra_state(state)


@pytest.mark.parametrize("pos", names(1))
def test_checkpoints_from_before_there_was_a_square_are_read(pos, said):
    state = mark(pos).get_extra_state()
    mark(pos).set_extra_state(state[: 1 + SLOTS.index("square")])
    assert not said.text


@pytest.mark.parametrize("decay", [0.9995, 0.9998, 0.9999])
def test_a_moving_average_of_a_long_training_is_of_that_training(decay, said):
    """Rounding adds up over some 1 / (1 - decay) updates: all variants at once, 30,000 updates."""
    states = torch.stack([mark(pos).get_extra_state() for pos in names(1)])
    average = moved(states, decay, 30_000)
    assert not torch.equal(average, states)
    for pos, state in zip(names(1), average, strict=True):
        mark(pos).set_extra_state(state)
    assert not said.text


@pytest.mark.parametrize("number", [99.0, -1.0, math.nan, math.inf])
def test_a_number_of_no_variant_is_told_as_such(number):
    state = mark("cape").get_extra_state()
    state[0] = number
    with pytest.raises(
        ValueError, match=r"of no variant that this version knows: .* later version"
    ):
        mark("cape").set_extra_state(state)


def test_a_setting_that_somebody_changed_is_still_a_warning(said):
    mark("cape", max_global_shift=5.0).set_extra_state(
        mark("cape", max_global_shift=5.1).get_extra_state()
    )
    assert "trained with --max_global_shift 5.1, this model has 5" in said.text


def test_training_does_not_move_a_mark():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mark = torch.nn.Linear(2, 2), mark("cape")

    model = Model()
    names_of_weights = [name for name, _ in model.named_parameters()]
    assert not any("mark" in name for name in names_of_weights)
    before = model.mark.get_extra_state()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.5)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9995))
    for _ in range(3):
        model.layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
    assert torch.equal(model.mark.get_extra_state(), before)
    assert torch.equal(averaged.module.mark.get_extra_state(), before)
