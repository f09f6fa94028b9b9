"""When a request that the store no longer knows is given up."""

from __future__ import annotations

from gateway.forgotten import ELSEWHERE_BEATS, WAITING_BEATS, Forgotten
from gateway.stream import Stream
from tests.gateway.fake_queue import claim_of


def stream() -> Stream:
    return Stream(
        claim_of("s").entry,
        model="fake",
        clock=lambda: 0,
        on_complete=lambda _: None,
        on_cancel=lambda _: None,
        on_lost=lambda _: None,
    )


def beats_until_given_up(opened: Stream, *, at_most: int) -> int | None:
    forgotten = Forgotten()
    for beat in range(1, at_most + 1):
        if forgotten.observe((opened,), {"s"}, waiting_beats=WAITING_BEATS):
            return beat
    return None


def test_a_waiting_request_is_given_up_after_some_beats_in_a_row() -> None:
    """An offer on its way is unknown for a moment too."""
    assert beats_until_given_up(stream(), at_most=100) == WAITING_BEATS


def test_a_request_that_has_begun_has_longer() -> None:
    """Its driver may run it still; if it was paused into the store that was lost, nobody does."""
    begun = stream()
    begun.driver_id = "d"
    assert beats_until_given_up(begun, at_most=100) == ELSEWHERE_BEATS


def test_a_beat_in_which_the_store_knows_it_starts_the_count_anew() -> None:
    """Only an absence that lasts is a loss."""
    forgotten, opened = Forgotten(), stream()
    for unknown in (*[{"s"}] * (WAITING_BEATS - 1), set(), *[{"s"}] * (WAITING_BEATS - 1)):
        assert forgotten.observe((opened,), unknown, waiting_beats=WAITING_BEATS) == ()


def test_a_token_starts_the_count_anew() -> None:
    """A running sequence does not need the store."""
    forgotten, opened = Forgotten(), stream()
    opened.driver_id = "d"
    for beat in range(2 * ELSEWHERE_BEATS):
        opened.put((1,), beat)
        assert forgotten.observe((opened,), {"s"}) == ()


def test_a_request_whose_driver_fell_silent_has_no_longer_than_one_that_waits() -> None:
    """Its driver is dead, or cut off from the store alone; then its tokens come, and start the count anew."""
    forgotten, begun = Forgotten(), stream()
    begun.driver_id = "d"
    begun.put((1,), 0)
    beats = 1
    while not forgotten.observe((begun,), {"s"}, {"s"}):
        beats += 1
    assert beats == WAITING_BEATS
