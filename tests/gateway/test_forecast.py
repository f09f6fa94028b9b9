"""Predicted waits and times to come back: from what is known, scored, spread, and bounded."""

from __future__ import annotations

from collections import Counter

import pytest

from admission.classes import DEFAULT_CLASSES
from admission.queue import QueueStats
from admission.standing import WaitingOrderName
from gateway.dispatch import Place
from gateway.forecast import (
    LEAST_RETRY_S,
    LEAST_SPREAD_S,
    MOST_RETRY_S,
    DriverSpeed,
    Forecast,
    Outlook,
    WaitForecast,
    retry_after_s,
)

LINE = QueueStats(requests=10, tokens=1000, by_class=(("batch", 2, 600), ("interactive", 5, 100), ("standard", 3, 300)))


class Hands:
    """A clock that stands still until it is moved."""

    now_us = 0

    def __call__(self) -> int:
        return self.now_us


def known(
    *speeds: float | None, order: WaitingOrderName = WaitingOrderName.AGING, clock: Hands | None = None
) -> Forecast:
    forecast = Forecast(DEFAULT_CLASSES, order, clock=clock or Hands())
    forecast.take_speeds([DriverSpeed(model="m", tokens_per_s=speed) for speed in speeds])
    forecast.sample("m", LINE)
    return forecast


def test_ahead_is_what_waits_in_the_same_class_and_in_better_ones() -> None:
    """An interactive request does not wait for batch jobs, and few long requests take longer than many short ones."""
    forecast = known(60.0, 40.0)
    assert [forecast.wait_s("m", rank) for rank in (0, 1, 2)] == [1.0, 4.0, 10.0]


def test_where_class_does_not_matter_the_whole_line_is_ahead() -> None:
    """First come, first served."""
    assert known(100.0, order=WaitingOrderName.FCFS).wait_s("m", 0) == 10.0


def test_what_was_queued_since_the_last_sample_counts() -> None:
    """A burst is faster than any sampling; the next sample knows it too."""
    forecast = known(100.0)
    forecast.queued("m", 1, 500)
    assert [forecast.wait_s("m", rank) for rank in (0, 1, 2)] == [1.0, 9.0, 15.0]
    forecast.sample("m", LINE)
    assert forecast.wait_s("m", 2) == 10.0


def test_what_has_drained_since_the_last_sample_counts_no_more() -> None:
    """Else a gateway would count what it has queued since, and not what has left for it, and refuse too much."""
    clock = Hands()
    forecast = known(100.0, clock=clock)
    clock.now_us += 2_000_000
    assert [forecast.wait_s("m", rank) for rank in (0, 1, 2)] == [0.0, 2.0, 8.0]
    forecast.sample("m", LINE)
    assert forecast.wait_s("m", 1) == 4.0


def test_without_a_measurement_of_every_driver_nothing_is_predicted() -> None:
    """After a start, or when a worker has just joined: half of the speed would be twice the wait."""
    assert known().wait_s("m", 2) is None
    assert known(100.0, None).wait_s("m", 2) is None
    assert known(0.0).wait_s("m", 2) is None
    assert known(100.0).wait_s("another", 2) is None


def test_a_line_that_was_never_sampled_is_empty() -> None:
    """A model that is seen for the first time."""
    forecast = Forecast(DEFAULT_CLASSES, WaitingOrderName.AGING)
    forecast.take_speeds([DriverSpeed(model="m", tokens_per_s=10.0)])
    assert forecast.wait_s("m", 2) == 0.0


def test_classes_unknown_here_count_as_the_worst() -> None:
    """Another gateway may already have a newer configuration."""
    forecast = known(100.0)
    forecast.sample("m", QueueStats(requests=2, tokens=200, by_class=(("of tomorrow", 2, 200),)))
    assert [forecast.wait_s("m", rank) for rank in (1, 2)] == [0.0, 2.0]


def test_a_prediction_is_scored_by_what_came_of_it() -> None:
    """One is exact, above it the wait was longer. Next to nothing predicted is not scored: any ratio could come."""
    assert WaitForecast(made_us=1_000_000, wait_s=2.0).observed_ratio(4_000_000) == 1.5
    assert WaitForecast(made_us=1_000_000, wait_s=0.0).observed_ratio(4_000_000) is None


@pytest.mark.parametrize(("wait_s", "least"), [(0.0, LEAST_RETRY_S), (10.0, 10.0), (40.0, 40.0), (10**9, 48.0)])
def test_the_time_to_come_back_is_bounded_and_never_the_same_for_all(wait_s: float, least: float) -> None:
    """G03: clients that were refused together must not return together, at the bounds no more than between them."""
    times = [retry_after_s(wait_s) or 0.0 for _ in range(20_000)]
    assert least <= min(times)
    assert max(times) <= min(MOST_RETRY_S, least + max(0.25 * least, LEAST_SPREAD_S))
    assert max(Counter(int(10 * time) for time in times).values()) < 0.05 * len(times)


def test_an_unknown_wait_stays_unknown() -> None:
    """The answer has a time of its own then."""
    assert retry_after_s(None) is None


def test_a_place_falls_with_what_is_sampled_and_never_rises() -> None:
    """Who came after it must not seem to stand before it; before the first sample only the offer's answer is known."""
    clock = Hands()
    forecast = known(100.0, clock=clock)
    clock.now_us = 1
    made = WaitForecast(made_us=1, wait_s=4.0)
    outlook = Outlook(forecast, model="m", rank=1, num_ahead=20, made=made)
    assert outlook.place(1, 1) == Place(num_ahead=20, left_s=4.0)
    clock.now_us = 1_000_001
    forecast.sample("m", LINE)
    assert outlook.place(1, clock.now_us) == Place(num_ahead=7, left_s=3.0)
    forecast.sample("m", QueueStats(requests=50, tokens=5, by_class=(("interactive", 50, 5),)))
    clock.now_us = 5_000_001
    assert outlook.place(1, clock.now_us) == Place(num_ahead=7, left_s=None)
    forecast.sample("m", QueueStats(requests=0, tokens=0, by_class=()))
    assert outlook.place(1, clock.now_us).num_ahead == 0
