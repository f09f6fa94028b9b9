"""Exact percentiles of counted values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.histogram import Histogram


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_values(values: list[int]) -> None:
    """Nearest rank, by its definition."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    ranked = sorted(values)
    assert histogram.percentiles(50, 90, 99, 100) == tuple(
        ranked[-(-percent * len(ranked) // 100) - 1] for percent in (50, 90, 99, 100)
    )
    assert (histogram.count, histogram.total) == (len(values), sum(values))


def test_a_value_may_be_added_many_times_at_once() -> None:
    """All sequences of an iteration have the same gap."""
    histogram = Histogram()
    histogram.add(7, 99)
    histogram.add(9)
    assert histogram.percentiles(99, 100) == (7, 9)


def test_no_values_have_no_percentile() -> None:
    """Not 0, and not NaN."""
    with pytest.raises(ValueError, match="no values"):
        Histogram().percentiles(50)
