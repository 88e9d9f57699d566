"""The longest fifth is held out, the same in every call."""

import pytest

from cape_studies.data.split import short_and_long


def test_the_longest_fifth_is_in_bins_of_equal_counts_and_stays_out_of_training():
    lengths = {number: float(number) for number in range(1, 101)}
    short, bins, limit = short_and_long(lengths, str, "{:g}-{:g}")
    assert limit == 80
    assert short == list(range(1, 81))
    assert list(bins) == ["81-87", "88-93", "94-100"]
    assert sorted(one for inside in bins.values() for one in inside) == list(range(81, 101))


def test_lengths_that_are_alike_are_refused():
    with pytest.raises(ValueError, match="0 of 30 are longer than 7"):
        short_and_long(dict.fromkeys(range(30), 7.0), str, "{:g}-{:g}")
