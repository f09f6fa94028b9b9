"""Tenants take turns: equal tokens for all that wait, no credit for idleness, nobody kept out for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from admission.classes import INTERACTIVE, STANDARD
from admission.queue import Offered
from admission.standing import WaitingOrderName
from tests.admission.waiting import DRIVER, OTHER, Waiting


@pytest.mark.parametrize("order", [WaitingOrderName.AGING, WaitingOrderName.LEAST_SERVED])
def test_tenants_with_unequal_demand_get_equal_tokens_within_one_entry(order: WaitingOrderName) -> None:
    """A tenant that sends ten times as much, and first, must not get ten times as much."""
    waiting = Waiting(order)
    for number in range(100):
        waiting.offer(f"greedy{number}", tenant="greedy", tokens=30)
    for number in range(20):
        waiting.offer(f"modest{number}", tenant="modest", tokens=50)
    got = Counter[str]()
    for _ in range(50):
        (claim,) = waiting.claim()
        got[claim.entry.tenant] += claim.entry.tokens
        assert abs(got["greedy"] - got["modest"]) <= 50


def test_a_tenant_that_was_idle_brings_no_credit() -> None:
    """Else one that comes back after an hour would have the queue for itself for an hour."""
    waiting = Waiting()
    for number in range(40):
        waiting.offer(f"busy{number}", tenant="busy")
    waiting.take(slots=20)
    for number in range(20):
        waiting.offer(f"back{number}", tenant="back")
    got = Counter(claim.entry.tenant for claim in waiting.claim(slots=20))
    assert abs(got["busy"] - got["back"]) <= 1


def test_a_tenant_that_goes_idle_finds_its_debts_again() -> None:
    """Else whoever stops waiting for a moment after each request would always be first."""
    waiting = Waiting()
    waiting.offer("giant", tenant="a", tokens=1_000)
    for number in range(10):
        waiting.offer(f"b{number}", tenant="b")
    assert waiting.take(slots=2) == ["giant", "b0"]
    waiting.offer("again", tenant="a")
    assert waiting.take(slots=10) == [*(f"b{number}" for number in range(1, 10)), "again"]


def test_tenants_that_are_new_each_time_cannot_keep_an_old_one_waiting_for_ever() -> None:
    """A tenant costs nothing to invent; the one that has been served before must get its turn all the same."""
    waiting = Waiting()
    for number in range(3):
        waiting.offer(f"first new {number}", tenant=f"first {number}")
    waiting.offer("old 0", tenant="old", tokens=200)
    waiting.take(slots=4)
    waiting.offer("old 1", tenant="old")
    served = []
    for number in range(200):
        waiting.offer(f"new {number}", tenant=f"new {number}")
        waiting.offer(f"newer {number}", tenant=f"newer {number}")
        served += waiting.take()
    assert "old 1" in served


def test_an_old_entry_lends_its_age_to_nobody() -> None:
    """The tenant whose turn it is competes with other classes by the score of its own entry."""
    waiting = Waiting()
    waiting.offer("heavy 0", tenant="heavy", tokens=1_000)
    waiting.offer("other 0", tenant="other")
    assert waiting.take(slots=2) == ["heavy 0", "other 0"]
    waiting.offer("heavy 1", tenant="heavy")
    waiting.now_us += INTERACTIVE.head_start_us - STANDARD.head_start_us
    waiting.offer("standard", STANDARD)
    waiting.now_us += STANDARD.head_start_us
    waiting.offer("light", tenant="light")
    assert waiting.take(slots=3) == ["standard", "light", "heavy 1"]


def test_a_sequence_that_comes_back_is_charged_once() -> None:
    """Being preempted is no reason to pay twice."""
    waiting = Waiting()
    for tenant in ("a", "b"):
        for number in range(3):
            waiting.offer(f"{tenant}{number}", tenant=tenant)
    assert waiting.take(slots=2) == ["a0", "b0"]
    for _ in range(5):
        waiting.queue.give_back(DRIVER, ["a0"], waiting.now_us)
        assert waiting.take() == ["a0"]
    assert waiting.take(slots=4, driver=OTHER) == ["a1", "b1", "a2", "b2"]


def test_what_moves_after_a_lost_worker_is_charged_once() -> None:
    """Nor is a worker that dies: the tenant has got nothing for it yet."""
    waiting = Waiting()
    for tenant in ("a", "b"):
        for number in range(3):
            waiting.offer(f"{tenant}{number}", tenant=tenant)
    assert waiting.take(slots=2) == ["a0", "b0"]
    waiting.queue.forget_driver(DRIVER, waiting.now_us)
    waiting.offer_again("a0 again", tenant="a")
    assert waiting.take(slots=5, driver=OTHER) == ["b1", "a0 again", "a1", "a2", "b2"]


def test_what_is_handed_over_is_charged_as_well() -> None:
    """Else a tenant whose requests meet free slots would pay nothing, and have its turn too soon under load."""
    waiting = Waiting()
    waiting.claim()
    assert waiting.offer("a0", tenant="a", tokens=100) is Offered.HANDED
    waiting.offer("b0", tenant="b")
    waiting.offer("a1", tenant="a")
    waiting.offer("b1", tenant="b")
    assert waiting.take(slots=3, driver=OTHER) == ["b0", "a1", "b1"]
