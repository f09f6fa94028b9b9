"""Groups: the sequences of one request are offered together, all or none."""

from __future__ import annotations

import pytest

from admission.classes import BATCH, INTERACTIVE
from admission.queue import MAX_GROUP, MAX_SHED, ClassRule, Offered, Withdrawn
from admission.standing import WaitingOrderName
from tests.admission.waiting import DRIVER, OTHER, Waiting

QUEUED, HANDED = Offered.QUEUED, Offered.HANDED


def test_a_group_waits_whole_or_not_at_all() -> None:
    """Half of the choices that were asked for are no answer; what was refused must leave no trace."""
    waiting = Waiting(max_requests=4)
    waiting.offer("before")
    assert waiting.offered_group("large", tokens=(10,) * 4).outcomes == (Offered.QUEUE_FULL,) * 4
    assert waiting.queue.stats().requests == 1
    assert waiting.offered_group("fits", tokens=(10,) * 3).outcomes == (QUEUED,) * 3
    assert waiting.take(slots=9) == ["before", "fits.0", "fits.1", "fits.2"]


@pytest.mark.parametrize(
    ("bounds", "rule", "refusal"),
    [
        ({"max_tokens": 39}, ClassRule(), Offered.QUEUE_TOKENS_FULL),
        ({}, ClassRule(max_requests=3), Offered.CLASS_FULL),
        ({}, ClassRule(max_tokens=39), Offered.CLASS_FULL),
    ],
)
def test_every_bound_counts_the_group_as_a_whole(bounds: dict[str, int], rule: ClassRule, refusal: Offered) -> None:
    """Each of its entries would fit alone."""
    waiting = Waiting(**bounds)
    assert waiting.offered_group("group", tokens=(10,) * 4, rule=rule).refusal is refusal
    assert waiting.queue.stats().requests == 0
    assert waiting.offered_group("smaller", tokens=(10,) * 3, rule=rule).outcomes == (QUEUED,) * 3


def test_only_what_no_slot_takes_needs_room() -> None:
    """What is handed over never waits, so it never counts."""
    waiting = Waiting(max_requests=1)
    waiting.claim(slots=2)
    result = waiting.offered_group("group", tokens=(10,) * 3)
    assert (result.outcomes, result.waiting_requests) == ((HANDED, HANDED, QUEUED), 1)
    assert waiting.handed() == ["group.0", "group.1"]


def test_a_class_that_may_not_wait_gets_a_group_through_while_slots_last() -> None:
    """And what it could have had of a group that is refused, the next one gets."""
    waiting = Waiting()
    waiting.claim(slots=3)
    never_waits = ClassRule(max_requests=0)
    assert waiting.offered_group("too many", tokens=(10,) * 4, rule=never_waits).refusal is Offered.CLASS_FULL
    assert waiting.handed() == []
    assert waiting.offered_group("as many", tokens=(10,) * 3, rule=never_waits).outcomes == (HANDED,) * 3


def test_a_group_comes_to_one_driver_as_far_as_it_has_room() -> None:
    """Choices of one prompt share its KV there. The roomiest takes what it can, then the next one."""
    waiting = Waiting()
    waiting.claim(slots=4)
    waiting.claim(slots=3, driver=OTHER)
    assert waiting.offered_group("group", tokens=(10,) * 6).outcomes == (HANDED,) * 6
    assert waiting.handed() == ["group.0", "group.1", "group.2", "group.3"]
    assert waiting.handed(OTHER) == ["group.4", "group.5"]


def test_an_entry_that_does_not_fit_is_passed_by_the_others_of_its_group() -> None:
    """As a claim would: each one that goes ahead of it counts a pass."""
    waiting = Waiting(max_passes=2)
    waiting.claim(slots=9, kv_tokens=35)
    assert waiting.offered_group("group", tokens=(90, 10, 10, 10)).outcomes == (QUEUED, HANDED, HANDED, QUEUED)
    assert waiting.take(slots=9, kv_tokens=15) == ["group.1", "group.2"], "what was handed over comes first"
    assert waiting.take(slots=9, kv_tokens=15) == [], "and nothing passes the large one any more"


def test_what_waits_already_goes_before_a_group() -> None:
    """A driver that has been woken and has not claimed yet must not be filled with what came later."""
    waiting = Waiting(max_passes=0)
    waiting.offer("large", tokens=90)
    waiting.offer("small")
    assert waiting.claim(slots=2, kv_tokens=20) == ()
    waiting.queue.withdraw("large", waiting.now_us)
    assert waiting.queue.is_woken(DRIVER)
    assert waiting.offered_group("group", tokens=(10, 10)).outcomes == (QUEUED, QUEUED)
    assert waiting.take(slots=2, kv_tokens=20) == ["small", "group.0"]


def test_a_group_sheds_for_all_of_it_or_for_none() -> None:
    """Requests of others must not be refused for one that is then refused as well."""
    waiting = Waiting(max_requests=10)
    for number in range(10):
        waiting.offer(f"low{number}", rule=ClassRule(may_be_shed=True))
    sheds = ClassRule(sheds=True)
    too_many = waiting.offered_group("many", INTERACTIVE, tokens=(10,) * (MAX_SHED + 1), rule=sheds)
    assert (too_many.refusal, too_many.shed) == (Offered.QUEUE_FULL, ())
    result = waiting.offered_group("high", INTERACTIVE, tokens=(10,) * 3, rule=sheds)
    assert [shed.entry_id for shed in result.shed] == ["low9", "low8", "low7"]
    assert waiting.queue.stats().requests == 10


def test_a_group_that_is_offered_again_answers_the_same_and_changes_nothing() -> None:
    """Its reply may have been lost, and each of its entries has gone its own way since."""
    waiting = Waiting(max_requests=2)
    waiting.offer("low", BATCH, rule=ClassRule(may_be_shed=True))
    waiting.claim(slots=0)
    sheds = ClassRule(sheds=True)
    first = waiting.offered_group("group", INTERACTIVE, tokens=(10, 10), rule=sheds)
    waiting.queue.settle(DRIVER, waiting.take(), waiting.now_us)
    again = waiting.offered_group("group", INTERACTIVE, tokens=(10, 10), rule=sheds)
    assert (again.outcomes, again.shed) == (first.outcomes, first.shed)
    assert waiting.take(slots=9) == ["group.1"]


def test_a_withdrawal_that_overtakes_a_group_stops_all_of_it() -> None:
    """Whoever gives up a request gives up all its sequences; the first withdrawal says so."""
    waiting = Waiting()
    assert waiting.queue.withdraw("group.1", waiting.now_us).outcome is Withdrawn.UNKNOWN
    assert waiting.offered_group("group", tokens=(10,) * 3).outcomes == (Offered.WITHDRAWN,) * 3
    assert waiting.queue.stats().requests == 0


def test_entries_of_a_group_are_withdrawn_one_by_one() -> None:
    """A choice that is complete early leaves the others alone."""
    waiting = Waiting()
    waiting.offered_group("group", tokens=(10,) * 3)
    waiting.queue.withdraw("group.1", waiting.now_us)
    assert waiting.take(slots=9) == ["group.0", "group.2"]


@pytest.mark.parametrize("order", list(WaitingOrderName))
def test_equal_entries_of_a_group_stand_in_their_order(order: WaitingOrderName) -> None:
    """Choices of one prompt are next to each other in the line, so one claim takes them together."""
    waiting = Waiting(order)
    waiting.offered_group("a", tokens=(10,) * 3)
    waiting.offered_group("b", tokens=(10,) * 3)
    assert waiting.take(slots=3) == ["a.0", "a.1", "a.2"]


def test_what_is_no_group_is_not_offered() -> None:
    """The store does nothing else while it takes a group, and one class's rule is given for all of it."""
    waiting = Waiting()
    for group in [[], [waiting.entry(f"e{n}", tokens=1) for n in range(MAX_GROUP + 1)]]:
        with pytest.raises(ValueError, match="a group holds"):
            waiting.queue.offer_group(group, waiting.now_us)
    mixed = [waiting.entry("a", BATCH, tokens=1), waiting.entry("b", INTERACTIVE, tokens=1)]
    with pytest.raises(ValueError, match="one class"):
        waiting.queue.offer_group(mixed, waiting.now_us)
    assert waiting.queue.stats().requests == 0
