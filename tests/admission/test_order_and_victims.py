"""The pure functions that order and choose."""

from __future__ import annotations

import pytest

from admission.order import ORDERS, aging, as_claimed, sjf
from admission.victims import Candidate, least_lost_work, lowest_class_newest, newest, slot_victim_key
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


SPECS = [
    make_spec("long", prompt=90, output=10, rank=0, score=1),
    make_spec("early", prompt=9, output=40, expected=8, rank=2, score=0),
    make_spec("urgent", prompt=9, output=9, rank=1, score=3, deadline_us=50),
    make_spec("short", prompt=2, output=3, rank=1, score=2, deadline_us=80),
]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("fcfs", ["early", "long", "short", "urgent"]),
        ("sjf", ["short", "early", "urgent", "long"]),
        ("priority", ["long", "short", "urgent", "early"]),
        ("aging", ["early", "long", "short", "urgent"]),
        ("edf", ["urgent", "short", "early", "long"]),
    ],
)
def test_each_order_by_name(order: str, names: list[str]) -> None:
    """Arrival, expected work, class, score, deadline; ties and those without a deadline go by arrival."""
    assert [spec.sequence_id for spec in sorted(SPECS, key=ORDERS[order])] == names


def test_the_jobs_of_sjf_are_as_long_as_expected_and_no_longer_than_allowed() -> None:
    """An expectation above ``max_tokens`` cannot come true."""
    assert sjf(make_spec("a", prompt=5, output=7, expected=90)) == sjf(make_spec("a", prompt=5, output=7))


def test_the_newest_of_the_lowest_class_is_sought_in_that_class_alone() -> None:
    """Work lost does not count."""
    assert lowest_class_newest(CANDIDATES).sequence_id == "costly"


def test_the_newest_is_the_one_that_started_last() -> None:
    """Whatever its class."""
    assert newest(CANDIDATES).sequence_id == "good"


def test_the_least_lost_work_is_sought_in_the_lowest_class() -> None:
    """A better class is not touched while a worse one runs; in a class the cheapest to redo goes, then the newest."""
    assert least_lost_work(CANDIDATES).sequence_id == "cheap and new"


def test_the_slot_victim_is_the_first_among_equals() -> None:
    """The rule of the golden traces."""
    assert slot_victim_key(1, 5, 0) > slot_victim_key(1, 5, 1) > slot_victim_key(1, 4, 0) > slot_victim_key(0, 9, 0)
