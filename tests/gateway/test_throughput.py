"""The measure behind Retry-After: recent, bounded, never zero."""

from __future__ import annotations

from gateway.throughput import LEAST_RETRY_S, LEAST_TOKENS_PER_S, MOST_RETRY_S, WINDOW_US, Throughput


class Clock:
    now_us = 0

    def __call__(self) -> int:
        return self.now_us


def measured(tokens_per_s: int) -> tuple[Clock, Throughput]:
    clock = Clock()
    throughput = Throughput(clock=clock)
    for _ in range(100):
        throughput.note(tokens_per_s // 10)
        clock.now_us += 100_000
    return clock, throughput


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """What was measured an hour ago says nothing about now."""
    clock, throughput = measured(1000)
    assert 950 <= throughput.tokens_per_s() <= 1050
    clock.now_us += WINDOW_US + 1
    assert throughput.tokens_per_s() == LEAST_TOKENS_PER_S


def test_what_waits_takes_its_tokens_over_the_rate() -> None:
    """Ten thousand tokens at a thousand a second: ten seconds."""
    _, throughput = measured(1000)
    assert 9 <= throughput.drain_s(10_000) <= 11


def test_the_time_to_come_back_is_bounded_on_both_sides() -> None:
    """Never at once, never after more than a minute."""
    _, throughput = measured(1000)
    assert throughput.drain_s(0) == LEAST_RETRY_S
    assert throughput.drain_s(10**9) == MOST_RETRY_S
