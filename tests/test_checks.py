"""What counts as a number, a count or a switch in options; others are refused by name."""

import math

import numpy as np
import pytest

import cape_plugins
from cape_plugins import RandomPositions, sinusoid_1d, token_positions
from cape_plugins.checks import check_count, check_positive, check_switch
from cape_support import cape


def test_options_take_numbers_of_numpy():
    five = np.float32(5)
    assert cape(max_global_shift=five).draw(3).shift.abs().max() <= 5
    assert RandomPositions(five).range == (0.0, 5.0)
    embedding = sinusoid_1d(token_positions([3]), 8, base=np.float32(100), frequency_scale=five)
    assert embedding.equal(sinusoid_1d(token_positions([3]), 8, base=100.0, frequency_scale=5.0))


def test_the_package_lists_its_public_names():
    assert {"Positions", "token_positions", "__version__"} <= {*dir(cape_plugins)}
    assert {*cape_plugins.__all__} <= {*dir(cape_plugins)}


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (check_positive, [5, 0.5, np.float32(5), np.int64(5)], [0, -1, "5", None, True, 5j]),
        (check_positive, [], [np.bool_(True), math.nan, math.inf, np.float32("inf")]),
        (check_count, [1, np.int64(2)], [0, 2.0, "2", True]),
        (check_switch, [True, False], ["off", "False", 0, None]),
    ],
)
def test_numbers_counts_and_switches_are_told_from_what_looks_like_them(check, right, wrong):
    for value in right:
        check("option", value)
    for value in wrong:
        with pytest.raises(ValueError, match="option"):
            check("option", value)
