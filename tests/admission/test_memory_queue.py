"""What the queue promises, on the memory store. That Redis keeps the same promises is ``test_queue_stores_agree``'s."""

from __future__ import annotations

from collections import Counter

import pytest

from admission.classes import BATCH, INTERACTIVE, SECOND_US, STANDARD, PriorityClass
from admission.events import Weakest
from admission.memory_queue import MemoryQueue
from admission.queue import (
    LOOK_AHEAD,
    MAX_SHED,
    NO_CLASS_RULE,
    Asked,
    Claim,
    ClassRule,
    Entry,
    Offered,
    OfferResult,
    QueueBounds,
    Shed,
)
from admission.standing import WaitingOrderName, standing

DRIVER, OTHER = "driver", "other"


class Harness:
    """A queue under one waiting order, with a clock that each offer moves."""

    def __init__(
        self,
        order: WaitingOrderName = WaitingOrderName.AGING,
        *,
        max_requests: int = 1_000,
        max_tokens: int | None = None,
        max_passes: int = 2,
    ) -> None:
        self.order = order
        bounds = QueueBounds(max_requests=max_requests, max_tokens=max_tokens, max_passes=max_passes)
        self.queue = MemoryQueue(bounds)
        self.now_us = 0

    def offer(
        self,
        name: str,
        cls: PriorityClass = BATCH,
        *,
        tokens: int = 10,
        tenant: str = "",
        deadline_in_us: int | None = None,
        rule: ClassRule = NO_CLASS_RULE,
    ) -> Offered:
        return self.offered(name, cls, tokens=tokens, tenant=tenant, deadline_in_us=deadline_in_us, rule=rule).outcome

    def offered(
        self,
        name: str,
        cls: PriorityClass = BATCH,
        *,
        tokens: int = 10,
        tenant: str = "",
        deadline_in_us: int | None = None,
        rule: ClassRule = NO_CLASS_RULE,
    ) -> OfferResult:
        self.now_us += 1
        stands = standing(self.order, cls=cls, tenant=tenant, tokens=tokens, deadline_in_us=deadline_in_us)
        entry = Entry(
            entry_id=name,
            class_name=cls.name,
            rank=cls.rank,
            standing=stands,
            tokens=tokens,
            payload=b"",
            tenant=tenant,
            origin=f"tcp:{name}",
        )
        return self.queue.offer(entry, self.now_us, rule)

    def claim(
        self, slots: int = 1, kv_tokens: int | None = None, *, weakest: Claim | None = None, driver: str = DRIVER
    ) -> tuple[Claim, ...]:
        told = (
            Weakest(sequence_id=weakest.entry.entry_id, rank=weakest.entry.rank, score=weakest.score)
            if weakest
            else None
        )
        return self.queue.claim(driver, Asked(slots=slots, kv_tokens=kv_tokens, weakest=told), self.now_us)

    def take(self, slots: int = 1, kv_tokens: int | None = None, *, driver: str = DRIVER) -> list[str]:
        return [claim.entry.entry_id for claim in self.claim(slots, kv_tokens, driver=driver)]

    def handed(self, driver: str = DRIVER) -> list[str]:
        return [claim.entry.entry_id for claim in self.queue.next_handed(driver, self.now_us)]


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (WaitingOrderName.FCFS, ["long", "low", "urgent", "short"]),
        (WaitingOrderName.SJF, ["short", "low", "urgent", "long"]),
        (WaitingOrderName.PRIORITY, ["long", "urgent", "short", "low"]),
        (WaitingOrderName.AGING, ["long", "urgent", "short", "low"]),
        (WaitingOrderName.EDF, ["urgent", "long", "low", "short"]),
        (WaitingOrderName.LEAST_SERVED, ["long", "low", "urgent", "short"]),
    ],
)
def test_each_order_by_name(order: WaitingOrderName, names: list[str]) -> None:
    """Arrival, length, class, aged class, deadline, tenant: what was asked for decides, and ties go by arrival."""
    harness = Harness(order)
    harness.offer("long", INTERACTIVE, tokens=90)
    harness.offer("low", BATCH)
    harness.offer("urgent", STANDARD, deadline_in_us=SECOND_US)
    harness.offer("short", STANDARD, tokens=2)
    assert harness.take(slots=4) == names


def test_under_aging_a_low_request_goes_before_a_high_one_that_came_a_head_start_later() -> None:
    """Nobody waits for ever: the wait bound rests on this."""
    harness = Harness()
    harness.offer("low", BATCH)
    harness.now_us += INTERACTIVE.head_start_us - 2
    harness.offer("high in time", INTERACTIVE)
    harness.now_us += 1
    harness.offer("high too late", INTERACTIVE)
    assert harness.take(slots=3) == ["high in time", "low", "high too late"]


HEAD_START, BOUND = 300, 50  # in units of ten microseconds, one for each entry that is given


def waits_under_load(order: WaitingOrderName) -> list[int]:
    """How long each low entry that was given had waited, while the high class alone brings 110 % of what is given."""
    high = PriorityClass(name="high", rank=0, head_start_us=10 * HEAD_START, service_tier="")
    harness = Harness(order, max_requests=BOUND)
    waits = []
    for now in range(1_200):
        harness.now_us = 10 * now
        if now % 10 == 0:
            harness.offer(f"low{now}", BATCH)
        for number in range(2 if now % 10 == 5 else 1):
            harness.offer(f"high{now}.{number}", high)
        (claim,) = harness.claim()
        if claim.entry.class_name == BATCH.name:
            waits.append(now - claim.arrival_us // 10)
    return waits


def test_a_low_request_waits_no_longer_than_the_head_start_and_a_full_queue() -> None:
    """Wait <= (greatest head start - own head start) + queue bound / rate, however high the load."""
    waits = waits_under_load(WaitingOrderName.AGING)
    assert len(waits) > 50
    assert max(waits) <= HEAD_START + BOUND


def test_under_a_strict_order_the_same_load_breaks_the_bound() -> None:
    """What aging is for: with strict classes a low entry waits until the queue is full of its like."""
    assert max(waits_under_load(WaitingOrderName.PRIORITY)) > HEAD_START + BOUND


# --- tenants ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [WaitingOrderName.AGING, WaitingOrderName.LEAST_SERVED])
def test_tenants_with_unequal_demand_get_equal_tokens_within_one_entry(order: WaitingOrderName) -> None:
    """A tenant that sends ten times as much, and first, must not get ten times as much."""
    harness = Harness(order)
    for number in range(100):
        harness.offer(f"greedy{number}", tenant="greedy", tokens=30)
    for number in range(20):
        harness.offer(f"modest{number}", tenant="modest", tokens=50)
    got = Counter[str]()
    for _ in range(50):
        (claim,) = harness.claim()
        got[claim.entry.tenant] += claim.entry.tokens
        assert abs(got["greedy"] - got["modest"]) <= 50


def test_a_tenant_that_was_idle_brings_no_credit() -> None:
    """Else one that comes back after an hour would have the queue for itself for an hour."""
    harness = Harness()
    for number in range(40):
        harness.offer(f"busy{number}", tenant="busy")
    harness.take(slots=20)
    for number in range(20):
        harness.offer(f"back{number}", tenant="back")
    got = Counter(claim.entry.tenant for claim in harness.claim(slots=20))
    assert abs(got["busy"] - got["back"]) <= 1


def test_a_tenant_that_goes_idle_finds_its_debts_again() -> None:
    """Else whoever stops waiting for a moment after each request would always be first."""
    harness = Harness()
    harness.offer("giant", tenant="a", tokens=1_000)
    for number in range(10):
        harness.offer(f"b{number}", tenant="b")
    assert harness.take(slots=2) == ["giant", "b0"]
    harness.offer("again", tenant="a")
    assert harness.take(slots=10) == [*(f"b{number}" for number in range(1, 10)), "again"]


def test_tenants_that_are_new_each_time_cannot_keep_an_old_one_waiting_for_ever() -> None:
    """A tenant costs nothing to invent; the one that has been served before must get its turn all the same."""
    harness = Harness()
    for number in range(3):
        harness.offer(f"first new {number}", tenant=f"first {number}")
    harness.offer("old 0", tenant="old", tokens=200)
    harness.take(slots=4)
    harness.offer("old 1", tenant="old")
    served = []
    for number in range(200):
        harness.offer(f"new {number}", tenant=f"new {number}")
        harness.offer(f"newer {number}", tenant=f"newer {number}")
        served += harness.take()
    assert "old 1" in served


def test_an_old_entry_lends_its_age_to_nobody() -> None:
    """The tenant whose turn it is competes with other classes by the score of its own entry."""
    harness = Harness()
    harness.offer("heavy 0", tenant="heavy", tokens=1_000)
    harness.offer("other 0", tenant="other")
    assert harness.take(slots=2) == ["heavy 0", "other 0"]
    harness.offer("heavy 1", tenant="heavy")
    harness.now_us += INTERACTIVE.head_start_us - STANDARD.head_start_us
    harness.offer("standard", STANDARD)
    harness.now_us += STANDARD.head_start_us
    harness.offer("light", tenant="light")
    assert harness.take(slots=3) == ["standard", "light", "heavy 1"]


def test_a_sequence_that_comes_back_is_charged_once() -> None:
    """Being preempted is no reason to pay twice."""
    harness = Harness()
    for tenant in ("a", "b"):
        for number in range(3):
            harness.offer(f"{tenant}{number}", tenant=tenant)
    assert harness.take(slots=2) == ["a0", "b0"]
    for _ in range(5):
        harness.queue.give_back(DRIVER, ["a0"], harness.now_us)
        assert harness.take() == ["a0"]
    assert harness.take(slots=4, driver=OTHER) == ["a1", "b1", "a2", "b2"]


def test_what_is_handed_over_is_charged_as_well() -> None:
    """Else a tenant whose requests meet free slots would pay nothing, and have its turn too soon under load."""
    harness = Harness()
    harness.claim()
    assert harness.offer("a0", tenant="a", tokens=100) is Offered.HANDED
    harness.offer("b0", tenant="b")
    harness.offer("a1", tenant="a")
    harness.offer("b1", tenant="b")
    assert harness.take(slots=3, driver=OTHER) == ["b0", "a1", "b1"]


# --- passing over -----------------------------------------------------------------------------------------------------


def test_a_head_that_was_passed_often_enough_is_served_next() -> None:
    """Small requests may use room that a large one cannot, but not for ever."""
    harness = Harness(max_passes=2)
    harness.offer("large", tokens=100)
    for number in range(5):
        harness.offer(f"small{number}", tokens=10)
    assert harness.take(slots=1, kv_tokens=50) == ["small0"]
    assert harness.take(slots=1, kv_tokens=50, driver=OTHER) == ["small1"]
    assert harness.take(slots=1, kv_tokens=50) == []
    assert harness.take(slots=2, kv_tokens=120) == ["large", "small2"]


def test_each_entry_that_goes_ahead_counts_also_within_one_claim() -> None:
    """A claim for many slots must not pass a head more often than many claims for one."""
    harness = Harness(max_passes=2)
    harness.offer("large", tokens=100)
    for number in range(5):
        harness.offer(f"small{number}", tokens=10)
    assert harness.take(slots=5, kv_tokens=99) == ["small0", "small1"]


def test_nothing_is_passed_over_where_that_is_not_allowed() -> None:
    """Zero means strict."""
    harness = Harness(max_passes=0)
    harness.offer("large", tokens=100)
    harness.offer("small")
    assert harness.take(kv_tokens=50) == []


def test_a_claim_without_a_free_slot_passes_nobody() -> None:
    """What is short then is a slot, and that fits anybody."""
    harness = Harness()
    harness.offer("head")
    harness.offer("second")
    assert harness.take(slots=0) == []
    assert harness.take(slots=2) == ["head", "second"]


def test_a_look_for_what_fits_ends_after_a_while() -> None:
    """The cost of a claim must not grow with the queue."""
    harness = Harness()
    for number in range(LOOK_AHEAD):
        harness.offer(f"large{number}", tokens=100)
    harness.offer("small")
    assert harness.take(kv_tokens=50) == []
    assert harness.take(kv_tokens=100) == ["large0"]
    assert harness.take(kv_tokens=50) == ["small"]


def test_an_offer_may_pass_heads_on_its_way_to_a_standing_want() -> None:
    """The driver has room for it and for nothing that waits."""
    harness = Harness(max_passes=1)
    harness.offer("large", tokens=100)
    harness.claim(slots=3, kv_tokens=50)
    assert harness.offer("small") is Offered.HANDED
    assert harness.handed() == ["small"]
    assert harness.offer("another small") is Offered.QUEUED


def test_a_driver_is_woken_by_what_it_may_have_and_by_nothing_else() -> None:
    """A wake-up for nothing costs a claim, a missing one leaves a slot empty."""
    harness = Harness(max_passes=1)
    harness.offer("large", tokens=100)
    harness.claim(slots=1, kv_tokens=50)
    harness.offer("too large as well", tokens=60)
    assert not harness.queue.is_woken(DRIVER)
    harness.claim(slots=0, driver=OTHER)
    harness.now_us += 10 * SECOND_US  # the want is too old for a hand-over
    harness.offer("small")
    assert harness.queue.is_woken(DRIVER)
    assert harness.take(kv_tokens=50) == ["small"]
    harness.claim(slots=1, kv_tokens=50)
    harness.offer("small too")
    assert not harness.queue.is_woken(DRIVER)


def test_passes_count_anew_once_an_entry_has_been_given_out() -> None:
    """It waits a second time, and what it suffered the first time is over."""
    harness = Harness(max_passes=1)
    harness.offer("large", tokens=100)
    harness.offer("small0")
    assert harness.take(kv_tokens=50) == ["small0"]
    assert harness.take(kv_tokens=100) == ["large"]
    harness.queue.give_back(DRIVER, ["large"], harness.now_us)
    harness.offer("small1")
    harness.offer("small2")
    assert harness.take(kv_tokens=50) == ["small1"]
    assert harness.take(kv_tokens=50) == []


def test_passing_goes_on_to_the_same_tenant_and_then_to_the_next() -> None:
    """Whose turn it is stays so for as long as something of theirs fits."""
    harness = Harness()
    harness.offer("a large", tenant="a", tokens=100)
    harness.offer("b small", tenant="b")
    harness.offer("a small", tenant="a")
    assert harness.take(slots=2, kv_tokens=50) == ["a small", "b small"]


# --- exchange ---------------------------------------------------------------------------------------------------------


def test_a_better_head_takes_the_place_of_the_weakest_when_memory_is_short() -> None:
    """Free slots are of no use to it while a worse sequence holds the memory."""
    harness = Harness()
    harness.offer("low", BATCH, tokens=80)
    (low,) = harness.claim()
    harness.offer("high", INTERACTIVE, tokens=100)
    (high,) = harness.claim(slots=3, kv_tokens=20, weakest=low)
    assert (high.entry.entry_id, high.victim_id) == ("high", "low")
    assert harness.queue.stats().by_class == (("batch", 1),)


def test_an_exchange_must_bring_memory_enough() -> None:
    """Else the victim would have paused for nothing."""
    harness = Harness()
    harness.offer("low", BATCH, tokens=80)
    (low,) = harness.claim()
    harness.offer("high", INTERACTIVE, tokens=100)
    assert harness.claim(slots=3, kv_tokens=19, weakest=low) == ()


def test_a_head_that_fits_displaces_nobody() -> None:
    """Naming the weakest is an offer to give, not a wish."""
    harness = Harness()
    harness.offer("low", BATCH)
    (low,) = harness.claim()
    harness.offer("high", INTERACTIVE)
    (high,) = harness.claim(slots=1, kv_tokens=50, weakest=low)
    assert high.victim_id is None


def test_an_exchange_ends_the_want() -> None:
    """What room is left only the driver knows; an offer must not be handed to room that is gone."""
    harness = Harness()
    harness.offer("low", BATCH, tokens=80)
    (low,) = harness.claim()
    harness.offer("high", INTERACTIVE, tokens=100)
    harness.claim(slots=3, kv_tokens=20, weakest=low)
    assert harness.offer("next", INTERACTIVE, tokens=1) is Offered.QUEUED


def test_only_the_first_entry_may_displace() -> None:
    """What it would pass over is better, and should have the memory if anybody has."""
    harness = Harness()
    harness.offer("low", BATCH, tokens=30)
    (low,) = harness.claim()
    harness.offer("high and large", INTERACTIVE, tokens=100)
    harness.offer("high and small", INTERACTIVE, tokens=40)
    assert harness.claim(slots=1, kv_tokens=20, weakest=low) == ()


# --- class bounds and shedding ----------------------------------------------------------------------------------------

SHEDS = ClassRule(sheds=True)
MAY_BE_SHED = ClassRule(may_be_shed=True)


def names(shed: tuple[Shed, ...]) -> list[str]:
    return [one.entry_id for one in shed]


def test_a_class_fills_its_own_bound_and_no_other() -> None:
    """A flood of one class must leave room in the queue to the others."""
    harness = Harness()
    bound = ClassRule(max_requests=2, max_tokens=50)
    assert [harness.offer(f"b{number}", rule=bound) for number in range(3)] == [
        Offered.QUEUED,
        Offered.QUEUED,
        Offered.CLASS_FULL,
    ]
    assert harness.offer("large", STANDARD, tokens=51, rule=bound) is Offered.CLASS_FULL
    assert harness.offer("small", STANDARD, tokens=50, rule=bound) is Offered.QUEUED


def test_a_class_that_may_not_wait_is_served_when_there_is_a_free_slot() -> None:
    """A bound of zero counts what waits, and what is handed over never does."""
    harness = Harness()
    harness.claim()
    never_waits = ClassRule(max_requests=0)
    assert harness.offer("first", rule=never_waits) is Offered.HANDED
    assert harness.offer("second", rule=never_waits) is Offered.CLASS_FULL


def test_a_better_class_displaces_the_worst_of_the_lower_ones_when_the_queue_is_full() -> None:
    """Who is displaced hears of it at once, through its origin, instead of waiting behind what is better."""
    harness = Harness(max_requests=3)
    for number in range(3):
        harness.offer(f"low{number}", rule=MAY_BE_SHED)
    result = harness.offered("high", INTERACTIVE, rule=SHEDS)
    assert result.outcome is Offered.QUEUED
    assert result.shed == (Shed(entry_id="low2", origin="tcp:low2"),)
    assert harness.take(slots=4) == ["high", "low0", "low1"]


def test_what_was_shed_is_told_so_when_it_is_offered_again() -> None:
    """Its origin may not have heard, and must not have it queued twice. Nor may the one who shed it have heard."""
    harness = Harness(max_requests=1)
    harness.offer("low", rule=MAY_BE_SHED)
    first = harness.offered("high", INTERACTIVE, rule=SHEDS)
    assert harness.offer("low", rule=MAY_BE_SHED) is Offered.SHED
    assert harness.offered("high", INTERACTIVE, rule=SHEDS).shed == first.shed
    harness.queue.settle(DRIVER, harness.take(), harness.now_us)
    assert harness.offered("high", INTERACTIVE, rule=SHEDS).shed == first.shed


def test_no_more_is_shed_than_room_is_needed_for() -> None:
    """Each one shed is a request refused after it had been accepted."""
    harness = Harness(max_tokens=100)
    for number in range(10):
        harness.offer(f"low{number}", tokens=10, rule=MAY_BE_SHED)
    assert names(harness.offered("high", INTERACTIVE, tokens=25, rule=SHEDS).shed) == ["low9", "low8", "low7"]


def test_nothing_is_shed_when_that_would_not_make_room() -> None:
    """All or nothing: requests would be refused to nobody's good."""
    harness = Harness(max_tokens=100)
    for number in range(10):
        harness.offer(f"low{number}", tokens=10, rule=MAY_BE_SHED)
    too_much = harness.offered("high", INTERACTIVE, tokens=10 * MAX_SHED + 1, rule=SHEDS)
    assert (too_much.outcome, too_much.shed) == (Offered.QUEUE_TOKENS_FULL, ())
    assert harness.queue.stats().requests == 10


def test_only_what_is_lower_and_may_be_shed_is_shed_by_those_that_may() -> None:
    """A class is never displaced by its equals, nor against what its rule says."""
    harness = Harness(max_requests=2)
    harness.offer("protected", BATCH)
    harness.offer("equal", STANDARD, rule=MAY_BE_SHED)
    assert harness.offer("standard", STANDARD, rule=SHEDS) is Offered.QUEUE_FULL
    assert harness.offer("meek", INTERACTIVE) is Offered.QUEUE_FULL
    assert names(harness.offered("high", INTERACTIVE, rule=SHEDS).shed) == ["equal"]


def test_what_has_started_is_never_shed() -> None:
    """Its client has tokens already; neither pinned to its driver nor after that driver's end may it be displaced."""
    harness = Harness(max_requests=1)
    harness.offer("started", rule=MAY_BE_SHED)
    harness.take()
    harness.queue.give_back(DRIVER, ["started"], harness.now_us)
    assert harness.offer("high", INTERACTIVE, rule=SHEDS) is Offered.QUEUE_FULL
    harness.queue.forget_driver(DRIVER, harness.now_us)
    assert harness.offer("higher", INTERACTIVE, rule=SHEDS) is Offered.QUEUE_FULL


# --- guaranteed shares ------------------------------------------------------------------------------------------------


def shared_out(harness: Harness, slots: int, *short: tuple[str, int], kv_tokens: int | None = None) -> list[str]:
    asked = Asked(slots=slots, kv_tokens=kv_tokens, short=short)
    return [claim.entry.entry_id for claim in harness.queue.claim(DRIVER, asked, harness.now_us)]


def test_a_class_under_its_share_goes_first_for_as_many_slots_as_it_is_short_of() -> None:
    """A guarantee that waits for its turn is none; and one that takes more is a priority."""
    harness = Harness()
    for number in range(LOOK_AHEAD + 1):
        harness.offer(f"high{number}", INTERACTIVE)
    for number in range(3):
        harness.offer(f"low{number}")
    assert shared_out(harness, 4, (BATCH.name, 2)) == ["low0", "low1", "high0", "high1"]


def test_a_share_that_nobody_waits_for_is_lent() -> None:
    """Slots do not stay empty for a class that has nothing to run."""
    harness = Harness()
    harness.offer("high", INTERACTIVE)
    assert shared_out(harness, 1, (BATCH.name, 1)) == ["high"]


def test_what_was_lent_is_given_back_with_the_next_free_slot() -> None:
    """An offer of the class that is short meets a standing want ahead of what it would have to wait for."""
    harness = Harness()
    harness.offer("large", INTERACTIVE, tokens=100)
    assert shared_out(harness, 1, (BATCH.name, 1), kv_tokens=50) == []
    assert harness.offer("low") is Offered.HANDED


def test_a_class_that_is_short_but_does_not_fit_leaves_the_slot_to_others() -> None:
    """A guarantee of slots is none of memory."""
    harness = Harness(max_passes=0)
    harness.offer("high", INTERACTIVE)
    harness.offer("low and large", BATCH, tokens=100)
    assert shared_out(harness, 2, (BATCH.name, 1), kv_tokens=50) == ["high"]
