"""The histogram without locks says what the library's own says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.loop_histogram import LoopHistogram

BUCKETS = (0.005, 0.5, 1.0, 60.0)


def shown(registry: CollectorRegistry) -> list[str]:
    """What is scraped, save for when it was made."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(BUCKETS))))
def test_it_shows_what_the_library_would_show(values: list[float]) -> None:
    """A dashboard must not care who counted."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    for histogram in (
        LoopHistogram("gap_seconds", "Gaps.", buckets=BUCKETS, registry=ours),
        Histogram("gap_seconds", "Gaps.", buckets=BUCKETS, registry=theirs),
    ):
        for value in values:
            histogram.observe(value)
    assert shown(ours) == shown(theirs)
