"""Sizes of a model: lengths in tokens."""

import pytest

from cape_plugins import Sizes


@pytest.mark.parametrize(
    ("length", "spacing", "tokens"),
    [(2.9, 1.0, 3), (2.4, 1.0, 2), (0.13, 0.04, 3), (0.15, 0.04, 4)],
)
def test_a_length_is_the_nearest_number_of_tokens(length, spacing, tokens):
    assert Sizes(dim=2, spacing=spacing).tokens("context", length) == tokens


def test_a_length_below_one_token_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"context .*0\.04"):
        Sizes(dim=2, spacing=0.04).tokens("context", 0.03)
