"""The longest fifth is held out, the same in every call."""

import pytest

from cape_studies.data.split import short_and_long


def test_the_longest_fifth_is_in_bins_of_equal_counts_and_stays_out_of_training():
    lengths = {str(number): float(number) for number in range(1, 101)}
    short, bins, limit = short_and_long(lengths, "{:g}-{:g}")
    assert limit == 80
    assert short == [str(number) for number in range(1, 81)]
    assert list(bins) == ["81-87", "88-93", "94-100"]
    assert {one for inside in bins.values() for one in inside} == lengths.keys() - set(short)


def test_lengths_that_are_alike_are_refused():
    with pytest.raises(ValueError, match="0 of 13 are longer than 7"):
        short_and_long(dict.fromkeys("abcdefghijklm", 7.0), "{:g}-{:g}")
