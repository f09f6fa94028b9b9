"""The pure functions that order and choose."""

from __future__ import annotations

from admission.order import aging, as_claimed
from admission.victims import Candidate, least_lost_work, newest, slot_victim_key
from tests.admission.drive import make_spec

CANDIDATES = [
    Candidate(sequence_id="good", rank=0, number=9, computed_tokens=1),
    Candidate(sequence_id="costly", rank=2, number=3, computed_tokens=50),
    Candidate(sequence_id="cheap", rank=2, number=1, computed_tokens=5),
    Candidate(sequence_id="cheap and new", rank=2, number=2, computed_tokens=5),
]


def test_the_order_of_the_store_can_be_left_untouched() -> None:
    """The tutorial starts what it is handed, in that order."""
    specs = [make_spec("a", score=9), make_spec("b", score=1)]
    assert sorted(specs, key=as_claimed) == specs


def test_less_score_goes_first() -> None:
    """A score is an arrival less a head start: lower means longer waited or better class."""
    specs = [make_spec("a", score=9), make_spec("b", score=1)]
    assert [spec.sequence_id for spec in sorted(specs, key=aging)] == ["b", "a"]


def test_the_newest_is_the_one_that_started_last() -> None:
    """Whatever its class."""
    assert newest(CANDIDATES).sequence_id == "good"


def test_the_least_lost_work_is_sought_in_the_lowest_class() -> None:
    """A better class is not touched while a worse one runs; in a class the cheapest to redo goes, then the newest."""
    assert least_lost_work(CANDIDATES).sequence_id == "cheap and new"


def test_the_slot_victim_is_the_first_among_equals() -> None:
    """The rule of the golden traces."""
    assert slot_victim_key(1, 5, 0) > slot_victim_key(1, 5, 1) > slot_victim_key(1, 4, 0) > slot_victim_key(0, 9, 0)
