"""Cases of clients that leave, against a whole gateway: nothing is generated for nobody, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from admission.queue import QueueBounds
from gateway.driver import Driver
from gateway.frames import FrameConnection
from tests.gateway.fake_queue import claim_of
from tests.gateway.front_door import Door, door, posted
from tests.gateway.leaving import Client, behind_a_proxy, by_closing, by_kill, by_reset
from tests.gateway.raw_http import connection
from tests.gateway.soak import GREEDY, SMALL, soak
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript
from workers.wire import PlanMessage, ReportMessage

SLOTS = 4


@pytest.fixture
async def served(url: str, run_dir: Path) -> AsyncIterator[Door]:
    async with door(url, run_dir, bounds=QueueBounds(max_requests=256)) as served:
        yield served


def computes(plan: PlanMessage, slot: int) -> bool:
    return slot in plan.decode or slot in [span.slot for span in plan.prefill]


def started(served: Door) -> list[str]:
    """The sequences that took a slot, in order."""
    return [start.sequence_id for plan in served.worker.plans for start in plan.starts]


@pytest.mark.parametrize("client", [by_closing, by_reset, by_kill, behind_a_proxy])
async def test_a_stream_that_is_left_costs_at_most_the_plans_in_flight(served: Door, client: Client) -> None:
    """D01: however its client goes, the sequence is in no plan built afterwards, and a neighbour notices nothing."""
    worker = served.worker
    alone = await served.complete(max_tokens=1000)
    neighbour = asyncio.create_task(served.complete(max_tokens=1000))
    await wait_until(lambda: served.slots == 1, "the neighbour runs")
    with capture_logs() as logs:
        async with client(served.port, posted(max_tokens=1900, stream=True), 3) as leave:
            worker.gate.clear()
            await leave()
            await wait_until(lambda: served.outcome("cancelled") == 1, "the gateway has noticed")
            num_plans = len(worker.plans)
            assert num_plans - worker.executed <= 2
            worker.gate.set()
        answer = await neighbour
    slot = [start.slot for plan in worker.plans for start in plan.starts][-1]
    assert not [plan.step for plan in worker.plans[num_plans:] if computes(plan, slot)]
    assert (answer.status, answer.text) == (200, alone.text)
    await served.idle()
    assert served.outcome("cancelled") == 1
    assert {line["event"] for line in logs} == {"request"}


async def test_answers_that_nobody_waits_for_any_more_hold_no_slot(served: Door) -> None:
    """D02: a handler that never writes must still see its client leave; else slots go one by one, while ready."""
    for number in range(1, SLOTS + 6):
        async with connection(served.port) as (_, writer):
            writer.write(posted(max_tokens=1900))
            await wait_until(lambda: served.slots == 1, "it runs")
            served.worker.gate.clear()
        await wait_until(lambda left=number: served.outcome("cancelled") == left, "the gateway has noticed")
        served.worker.gate.set()
        await served.idle()
    answer = await served.complete()
    assert answer.json["usage"]["completion_tokens"] == 8
    assert served.gateway.value("sluicegate_output_tokens_total") < 1900


async def test_requests_that_were_left_in_the_queue_are_never_run(served: Door) -> None:
    """D03: a wave of impatient clients must cost those that come after it nothing, not one prompt token."""
    busy = [asyncio.create_task(served.complete(max_tokens=800)) for _ in range(SLOTS)]
    await wait_until(lambda: served.slots == SLOTS, "every slot is taken")
    served.worker.gate.clear()
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(200):
            _, writer = await clients.enter_async_context(connection(served.port))
            writer.write(posted(max_tokens=1000))

        async def all_wait() -> bool:
            return await served.waiting() == 200

        await wait_until(all_wait, "they wait", timeout_s=20)
    await wait_until(lambda: served.outcome("cancelled") == 200, "they are counted", timeout_s=20)

    async def nobody_waits() -> bool:
        return await served.waiting() == 0

    await wait_until(nobody_waits, "they are out of the queue")
    good = [asyncio.create_task(served.complete(max_tokens=20)) for _ in range(20)]
    served.worker.gate.set()
    answers = await asyncio.gather(*busy, *good)
    assert [answer.status for answer in answers] == [200] * (SLOTS + 20)
    assert len(started(served)) == len(set(started(served))) == SLOTS + 20
    await served.idle()
    await wait_until(lambda: served.gateway.value("sluicegate_queue_requests") == 0, "the gauge says so too")


async def test_four_that_end_together_leave_no_record_behind(served: Door) -> None:
    """D05: of four answers one finishes and the others are left; whatever kept account of them is empty afterwards.

    As four requests: the API has no ``n`` yet.
    """
    for _ in range(25):
        async with contextlib.AsyncExitStack() as clients:
            for max_tokens in (1900, 8, 1900, 1900):
                reader, writer = await clients.enter_async_context(connection(served.port))
                writer.write(posted(max_tokens=max_tokens, stream=True))
                if max_tokens == 8:
                    await reader.readuntil(b"[DONE]")
        await served.idle()
    await wait_until(lambda: served.outcome("cancelled") + served.outcome("completed") == 100, "each ended once")
    assembly = served.gateway.assembly
    await assembly.acts.drained()
    (driver,) = assembly.drivers._drivers.values()
    assert isinstance(driver, Driver)
    book = driver._book
    kept = [assembly.streams._open, assembly.streams._timers, book._records, book._slots, book._output, driver._events]
    assert [len(each) for each in kept] == [0] * len(kept)
    assert len(driver._early_cancels) <= 300, "a cancel that came after the end is forgotten in its turn"
    driver._scheduler.check()


async def test_whatever_ends_them_sequences_give_everything_back(url: str, run_dir: Path) -> None:
    """D07: finished, left, expired, displaced, in any order: then the pool is whole, to its last block.

    The long form is in tests/chaos.
    """
    async with door(url, run_dir, worker=WorkerPeer(SMALL), preset=GREEDY) as served:
        told = await soak(served, num_requests=200, seed=7)
    assert min(told.values()) > 0, told


async def test_a_cancel_that_crosses_a_claim_ends_the_sequence(served: Door) -> None:
    """Both come into one turn: begun anew, it would run for nobody, and the driver had no record of it."""
    asking = asyncio.create_task(served.complete(max_tokens=1900))
    await wait_until(lambda: served.slots == 1, "it runs")
    (driver,) = served.gateway.assembly.drivers._drivers.values()
    assert isinstance(driver, Driver)
    (sequence_id,) = driver._book.records
    driver.cancel((sequence_id,))
    driver._take_claims((claim_of(sequence_id),))
    await wait_until(lambda: not driver._book.records and served.slots == 0, "it has ended")
    assert (await served.complete()).status == 200
    assert len(served.worker.epochs) == 1, "the worker was never lost"
    asking.cancel()
    await asyncio.wait([asking])


async def test_a_report_that_comes_late_gives_its_other_sequences_their_tokens(served: Door) -> None:
    """D09: what was cancelled between a plan and its report is dropped from it, and the loop goes on."""
    alone = await served.complete(max_tokens=600)
    staying = asyncio.create_task(served.complete(max_tokens=600))
    async with connection(served.port) as (_, writer):
        writer.write(posted(max_tokens=600))
        await wait_until(lambda: len(started(served)) == 3, "both are in a plan")
        served.worker.gate.clear()
        await wait_until(lambda: len(served.worker.plans) - served.worker.executed == 2, "two plans are in flight")
    await wait_until(lambda: served.outcome("cancelled") == 1, "one is cancelled")
    next_one = asyncio.create_task(served.complete(max_tokens=600))
    served.worker.gate.set()
    assert [(await answer).text for answer in (staying, next_one)] == [alone.text] * 2
    await served.idle()
    assert 1 <= served.gateway.value("sluicegate_unwanted_tokens_total") <= 2, "those of the plans in flight"
    assert len(served.worker.epochs) == 1, "the worker was never lost"


class Distorting(WorkerPeer):
    """Sends its twentieth report twice, or after the next one."""

    def __init__(self, script: FakeScript, *, distortion: str) -> None:
        super().__init__(script)
        self._distortion = distortion
        self._held: ReportMessage | None = None

    def report(self, connection: FrameConnection, report: ReportMessage) -> None:
        if self.executed == 20 and self._distortion == "out of order":
            self._held = report
            return
        super().report(connection, report)
        if self.executed == 20:
            super().report(connection, report)
        if self._held is not None:
            super().report(connection, self._held)
            self._held = None


@pytest.mark.parametrize("distortion", ["twice", "out of order"])
async def test_a_worker_that_answers_out_of_turn_is_driven_anew_and_its_sequences_continue(
    url: str, run_dir: Path, distortion: str
) -> None:
    """D09: a report that is not due may be a token for somebody else: none of it counts, and nobody loses a token."""
    worker = Distorting(FakeScript(output=Echo(kind="echo"), slots=SLOTS), distortion=distortion)
    async with door(url, run_dir, worker=worker) as served:
        answers = await asyncio.gather(*[served.complete(max_tokens=200, prompt="abcdefghij") for _ in range(3)])
        assert [answer.text for answer in answers] == ["abcdefghij" * 20] * 3
        assert len(worker.epochs) >= 2, "it was driven anew"
        assert served.gateway.value("sluicegate_stale_tokens_total") == 0
        await served.idle()
