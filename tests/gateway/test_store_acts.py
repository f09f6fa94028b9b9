"""Acts on the store that nobody waits for: in order, repeated until done, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from prometheus_client import CollectorRegistry

from admission.queue import Withdrawal, Withdrawn
from gateway.metrics import Metrics
from gateway.store_acts import StoreActs
from tests.gateway.fake_queue import FakeQueue
from tests.support import wait_until


@asynccontextmanager
async def running(acts: StoreActs) -> AsyncIterator[None]:
    task = asyncio.create_task(acts.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def ignore(_entry_id: str, _driver_id: str) -> None:
    """For withdrawals whose outcome does not matter."""


def made(**options: Any) -> tuple[StoreActs, Metrics]:
    metrics = Metrics(CollectorRegistry())
    return StoreActs(metrics=metrics, **options), metrics


async def test_acts_happen_in_the_order_in_which_they_were_asked_for() -> None:
    """A sequence that was given back, claimed again and ended must not end as waiting."""
    acts, _ = made()
    queue: Any = FakeQueue()
    acts.give_back(queue, "d", ("a",))
    acts.settle(queue, "d", ("a",))
    acts.settle(queue, "d", ("b",))
    acts.withdraw(queue, "c", ignore)
    async with running(acts):
        await acts.drained()
    assert queue.acts == [("give back", "d", "a"), ("settle", "d", "a", "b"), ("withdraw", "c")]


async def test_what_the_store_missed_while_it_was_away_is_done_when_it_is_back() -> None:
    """Running streams finish without Redis; their entries are settled later."""
    acts, _ = made()
    queue: Any = FakeQueue()
    queue.is_away = True
    async with running(acts):
        acts.settle(queue, "d", ("a",))
        await wait_until(lambda: queue.attempts > 1, "it was tried again")
        acts.settle(queue, "d", ("b",))
        queue.is_away = False
        await acts.drained()
    assert queue.acts == [("settle", "d", "a"), ("settle", "d", "b")]


async def test_while_the_store_is_away_only_so_much_waits_for_it() -> None:
    """Memory is bounded whatever Redis does; what is dropped is counted."""
    acts, metrics = made(most_pending_ids=3)
    queue: Any = FakeQueue()
    for number in range(5):
        acts.withdraw(queue, str(number), ignore)
    assert metrics.registry.get_sample_value("sluicegate_store_acts_dropped_total") == 2
    async with running(acts):
        await acts.drained()
    assert queue.acts == [("withdraw", "2"), ("withdraw", "3"), ("withdraw", "4")]


async def test_a_withdrawal_that_comes_too_late_names_the_driver() -> None:
    """The cancel goes there."""
    acts, _ = made()
    queue: Any = FakeQueue()
    queue.withdrawals["a"] = Withdrawal(outcome=Withdrawn.CLAIMED, driver_id="g/w")
    told: list[tuple[str, str]] = []
    acts.withdraw(queue, "a", lambda entry_id, driver_id: told.append((entry_id, driver_id)))
    acts.withdraw(queue, "b", lambda entry_id, driver_id: told.append((entry_id, driver_id)))
    async with running(acts):
        await acts.drained()
    assert told == [("a", "g/w")]


async def test_withdrawing_a_paused_sequence_tells_the_driver_that_keeps_it() -> None:
    """It waits in the store, but its driver holds its tokens and its record until it is told."""
    acts, _ = made()
    queue: Any = FakeQueue()
    queue.withdrawals["a"] = Withdrawal(outcome=Withdrawn.WITHDRAWN, driver_id="g/w")
    told: list[tuple[str, str]] = []
    acts.withdraw(queue, "a", lambda entry_id, driver_id: told.append((entry_id, driver_id)))
    async with running(acts):
        await acts.drained()
    assert told == [("a", "g/w")]
