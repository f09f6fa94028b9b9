"""Bounds of classes, and who gives way when the queue is full."""

from __future__ import annotations

from admission.classes import BATCH, INTERACTIVE, STANDARD
from admission.queue import MAX_SHED, ClassRule, Offered, Shed
from tests.admission.waiting import DRIVER, Waiting

SHEDS = ClassRule(sheds=True)
MAY_BE_SHED = ClassRule(may_be_shed=True)


def names(shed: tuple[Shed, ...]) -> list[str]:
    return [one.entry_id for one in shed]


def test_a_class_fills_its_own_bound_and_no_other() -> None:
    """A flood of one class must leave room in the queue to the others."""
    waiting = Waiting()
    bound = ClassRule(max_requests=2, max_tokens=50)
    assert [waiting.offer(f"b{number}", rule=bound) for number in range(3)] == [
        Offered.QUEUED,
        Offered.QUEUED,
        Offered.CLASS_FULL,
    ]
    assert waiting.offer("large", STANDARD, tokens=51, rule=bound) is Offered.CLASS_FULL
    assert waiting.offer("small", STANDARD, tokens=50, rule=bound) is Offered.QUEUED


def test_a_class_that_may_not_wait_is_served_when_there_is_a_free_slot() -> None:
    """A bound of zero counts what waits, and what is handed over never does."""
    waiting = Waiting()
    waiting.claim()
    never_waits = ClassRule(max_requests=0)
    assert waiting.offer("first", rule=never_waits) is Offered.HANDED
    assert waiting.offer("second", rule=never_waits) is Offered.CLASS_FULL


def test_a_better_class_displaces_the_worst_of_the_lower_ones_when_the_queue_is_full() -> None:
    """Who is displaced hears of it at once, through its origin, instead of waiting behind what is better."""
    waiting = Waiting(max_requests=3)
    for number in range(3):
        waiting.offer(f"low{number}", rule=MAY_BE_SHED)
    result = waiting.offered("high", INTERACTIVE, rule=SHEDS)
    assert result.outcome is Offered.QUEUED
    assert result.shed == (Shed(entry_id="low2", origin="tcp:low2"),)
    assert waiting.take(slots=4) == ["high", "low0", "low1"]


def test_what_was_shed_is_told_so_when_it_is_offered_again() -> None:
    """Its origin may not have heard, and must not have it queued twice. Nor may the one who shed it have heard."""
    waiting = Waiting(max_requests=1)
    waiting.offer("low", rule=MAY_BE_SHED)
    first = waiting.offered("high", INTERACTIVE, rule=SHEDS)
    assert waiting.offer("low", rule=MAY_BE_SHED) is Offered.SHED
    assert waiting.offered("high", INTERACTIVE, rule=SHEDS).shed == first.shed
    waiting.queue.settle(DRIVER, waiting.take(), waiting.now_us)
    assert waiting.offered("high", INTERACTIVE, rule=SHEDS).shed == first.shed


def test_no_more_is_shed_than_room_is_needed_for() -> None:
    """Each one shed is a request refused after it had been accepted."""
    waiting = Waiting(max_tokens=100)
    for number in range(10):
        waiting.offer(f"low{number}", tokens=10, rule=MAY_BE_SHED)
    assert names(waiting.offered("high", INTERACTIVE, tokens=25, rule=SHEDS).shed) == ["low9", "low8", "low7"]


def test_nothing_is_shed_when_that_would_not_make_room() -> None:
    """All or nothing: requests would be refused to nobody's good."""
    waiting = Waiting(max_tokens=100)
    for number in range(10):
        waiting.offer(f"low{number}", tokens=10, rule=MAY_BE_SHED)
    too_much = waiting.offered("high", INTERACTIVE, tokens=10 * MAX_SHED + 1, rule=SHEDS)
    assert (too_much.outcome, too_much.shed) == (Offered.QUEUE_TOKENS_FULL, ())
    assert waiting.queue.stats().requests == 10


def test_only_what_is_lower_and_may_be_shed_is_shed_by_those_that_may() -> None:
    """A class is never displaced by its equals, nor against what its rule says."""
    waiting = Waiting(max_requests=2)
    waiting.offer("protected", BATCH)
    waiting.offer("equal", STANDARD, rule=MAY_BE_SHED)
    assert waiting.offer("standard", STANDARD, rule=SHEDS) is Offered.QUEUE_FULL
    assert waiting.offer("meek", INTERACTIVE) is Offered.QUEUE_FULL
    assert names(waiting.offered("high", INTERACTIVE, rule=SHEDS).shed) == ["equal"]


def test_what_has_started_is_never_shed() -> None:
    """Its client has tokens already; neither pinned to its driver nor after that driver's end may it be displaced."""
    waiting = Waiting(max_requests=1)
    waiting.offer("started", rule=MAY_BE_SHED)
    waiting.take()
    waiting.queue.give_back(DRIVER, ["started"], waiting.now_us)
    assert waiting.offer("high", INTERACTIVE, rule=SHEDS) is Offered.QUEUE_FULL
    waiting.queue.forget_driver(DRIVER, waiting.now_us)
    assert waiting.offer("higher", INTERACTIVE, rule=SHEDS) is Offered.QUEUE_FULL
