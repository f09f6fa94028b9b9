"""The expected output of a request, from what its kind has given lately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.estimate import COLD_TOKENS, LEAST_SAMPLES, WINDOW, OutputEstimate


def _after(lengths: list[int]) -> OutputEstimate:
    estimate = OutputEstimate()
    for length in lengths:
        estimate.note(length)
    return estimate


def test_too_few_samples_expect_a_long_answer_but_not_all_that_is_allowed() -> None:
    """A guess from a handful of answers would admit too much; the whole allowance would admit next to nobody."""
    assert _after([1] * (LEAST_SAMPLES - 1)).expected(500) == 500
    assert _after([1] * (LEAST_SAMPLES - 1)).expected(8_000) == COLD_TOKENS
    assert _after([1] * LEAST_SAMPLES).expected(8_000) == 1


def test_six_of_ten_recent_outputs_are_within_the_expectation() -> None:
    """The quantile is the nearest rank: 60 of the numbers 1 to 100."""
    assert _after(list(range(1, 101))).expected(1_000) == 60


def test_never_more_than_the_request_allows_nor_less_than_one() -> None:
    """Memory for more than ``max_tokens`` could never be used; a sequence gives at least one token."""
    assert _after([300] * 50).expected(20) == 20
    assert _after([0] * 50).expected(20) == 1


def test_old_lengths_are_forgotten() -> None:
    """Traffic changes during the day: only the last window counts."""
    assert _after([1_000] * WINDOW + [10] * WINDOW).expected(5_000) == 10


def test_a_negative_length_is_refused() -> None:
    """A caller's slip must not spoil the window."""
    with pytest.raises(ValueError, match="output_tokens"):
        OutputEstimate().note(-1)


@given(st.lists(st.integers(0, 50), min_size=LEAST_SAMPLES, max_size=WINDOW + 80), st.integers(1, 60))
def test_equals_the_quantile_of_the_window_sorted_anew(lengths: list[int], max_tokens: int) -> None:
    """The incremental window must be what its definition says."""
    window = sorted(lengths[-WINDOW:])
    rank = -(-len(window) * 60 // 100)
    assert _after(lengths).expected(max_tokens) == max(1, min(max_tokens, window[rank - 1]))
