"""The journal of a link: whatever the origin may lack can be said again."""

from __future__ import annotations

from dataclasses import replace

from gateway.journal import KEEP_FINISHED_US, MOST_FINISHED, Journal
from workers.wire import Delivery


def part(position: int, *token_ids: int, finish: str = "", sequence_id: str = "a") -> Delivery:
    return Delivery(sequence_id=sequence_id, position=position, token_ids=token_ids, finish=finish, error="")


class Clock:
    now_us = 0

    def __call__(self) -> int:
        return self.now_us


def test_replay_says_everything_of_an_unfinished_sequence_at_once() -> None:
    """After a reconnect one message repairs whatever was lost."""
    journal = Journal(clock=Clock())
    for position in range(3):
        journal.add("g/w", part(position, 10 + position))
    assert list(journal.replay()) == [("g/w", part(0, 10, 11, 12))]


def test_a_finished_sequence_is_kept_for_a_while() -> None:
    """Its last message may have been in the connection that broke."""
    clock = Clock()
    journal = Journal(clock=clock)
    journal.add("g/w", part(0, 1))
    journal.add("g/w", part(1, 2, finish="length"))
    assert not journal.is_empty()
    assert list(journal.replay()) == [("g/w", part(0, 1, 2, finish="length"))]
    clock.now_us = KEEP_FINISHED_US + 1
    assert list(journal.replay()) == []
    assert journal.is_empty()


def test_the_stop_id_that_ended_a_sequence_is_said_again() -> None:
    """With the end, and only with it."""
    journal = Journal(clock=Clock())
    journal.add("g/w", part(0, 1))
    journal.add("g/w", replace(part(1, finish="stop"), stop_id=7))
    assert list(journal.replay()) == [("g/w", replace(part(0, 1, finish="stop"), stop_id=7))]


def test_finished_sequences_are_bounded_in_number() -> None:
    """A busy link must not keep half a minute of everything."""
    journal = Journal(clock=Clock())
    for number in range(MOST_FINISHED + 10):
        journal.add("g/w", part(0, 1, finish="stop", sequence_id=str(number)))
    assert len(list(journal.replay())) == MOST_FINISHED


def test_a_released_sequence_is_forgotten() -> None:
    """Cancelled, or continued by another driver: nobody waits for it here."""
    journal = Journal(clock=Clock())
    journal.add("g/w", part(0, 1))
    journal.release("a")
    assert list(journal.replay()) == []


def test_a_sequence_that_comes_back_later_begins_where_it_is_then() -> None:
    """It was released, ran elsewhere, and goes on here from another position."""
    journal = Journal(clock=Clock())
    journal.add("g/w", part(0, 1))
    journal.add("g/w", part(7, 8))
    assert list(journal.replay()) == [("g/w", part(7, 8))]
