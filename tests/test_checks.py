"""What counts as a number, a count or a switch in options; others are refused by name."""

import numpy as np
import pytest

import cape_plugins
from cape_plugins import RandomPositions, sinusoid_1d, token_positions
from cape_plugins.checks import check_count, check_positive, check_switch, is_number
from cape_support import cape


@pytest.mark.parametrize("value", [5, 0.5, np.float32(5), np.float64(5), np.int64(5)])
def test_numbers_of_python_and_of_numpy_are_numbers(value):
    assert is_number(value)
    check_positive("option", value)


@pytest.mark.parametrize(
    "value", ["5", None, True, np.bool_(True), float("nan"), float("inf"), np.float32("inf"), 5j]
)
def test_what_else_looks_like_one_is_none(value):
    assert not is_number(value)
    with pytest.raises(ValueError, match="option"):
        check_positive("option", value)


def test_options_take_numbers_of_numpy():
    five = np.float32(5)
    assert cape(max_global_shift=five).draw(3).shift.abs().max() <= 5
    assert RandomPositions(five).range == (0.0, 5.0)
    embedding = sinusoid_1d(token_positions([3]), 8, base=np.float32(100), frequency_scale=five)
    assert embedding.equal(sinusoid_1d(token_positions([3]), 8, base=100.0, frequency_scale=5.0))


def test_a_count_is_a_whole_number_and_no_switch():
    check_count("option", np.int64(2))
    for value in (0, 2.0, "2", True):
        with pytest.raises(ValueError, match="option"):
            check_count("option", value)


@pytest.mark.parametrize("value", ["off", "False", 0, None])
def test_a_switch_is_true_or_false_as_a_word_would_count_as_on(value):
    check_switch("option", False)
    for refused in (
        lambda: check_switch("option", value),
        lambda: RandomPositions(9.0, spread=value),
        lambda: cape(mean_normalize=value),
    ):
        with pytest.raises(ValueError, match=r"option|spread|mean_normalize"):
            refused()


def test_the_package_lists_its_public_names():
    assert {"Positions", "token_positions", "__version__"} <= {*dir(cape_plugins)}
    assert {*cape_plugins.__all__} <= {*dir(cape_plugins)}
