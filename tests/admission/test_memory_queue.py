"""The orders in which the memory store gives out. That Redis does the same is ``test_queue_stores_agree``'s matter."""

from __future__ import annotations

import pytest

from admission.classes import BATCH, INTERACTIVE, SECOND_US, STANDARD, PriorityClass
from admission.standing import WaitingOrderName
from tests.admission.waiting import Waiting


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
    waiting = Waiting(order)
    waiting.offer("long", INTERACTIVE, tokens=90)
    waiting.offer("low", BATCH)
    waiting.offer("urgent", STANDARD, deadline_in_us=SECOND_US)
    waiting.offer("short", STANDARD, tokens=2)
    assert waiting.take(slots=4) == names


def test_under_aging_a_low_request_goes_before_a_high_one_that_came_a_head_start_later() -> None:
    """Nobody waits for ever: the wait bound rests on this."""
    waiting = Waiting()
    waiting.offer("low", BATCH)
    waiting.now_us += INTERACTIVE.head_start_us - 2
    waiting.offer("high in time", INTERACTIVE)
    waiting.now_us += 1
    waiting.offer("high too late", INTERACTIVE)
    assert waiting.take(slots=3) == ["high in time", "low", "high too late"]


HEAD_START, BOUND = 300, 50  # in units of ten microseconds, one for each entry that is given


def waits_under_load(order: WaitingOrderName) -> list[int]:
    """How long each low entry that was given had waited, while the high class alone brings 110 % of what is given."""
    high = PriorityClass(name="high", rank=0, head_start_us=10 * HEAD_START, service_tier="")
    waiting = Waiting(order, max_requests=BOUND)
    waits = []
    for now in range(1_200):
        waiting.now_us = 10 * now
        if now % 10 == 0:
            waiting.offer(f"low{now}", BATCH)
        for number in range(2 if now % 10 == 5 else 1):
            waiting.offer(f"high{now}.{number}", high)
        (claim,) = waiting.claim()
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
