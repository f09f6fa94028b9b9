"""Requests that end before their time, by their client or their deadline: wherever they are, nothing is left."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from admission.keys import QueueKeys
from gateway.clock import monotonic_us
from gateway.dispatch import Tokens
from gateway.errors import Reason, Refused
from tests.gateway.small_cluster import (
    PROMPT,
    Member,
    driver_and_origin,
    echoed,
    is_idle,
    member,
    nothing_waits,
    read_all,
)
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


async def test_cancelling_a_waiting_request_takes_it_out_of_the_queue(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Nobody's request must not hold a place in a bounded queue."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        running = [await gateway.submit(prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(gateway), "a driver has both")
        waiting = await gateway.submit(prompt_ids=PROMPT)
        assert not await nothing_waits(gateway)
        waiting.cancel("test")
        waiting.cancel("again: it means nothing")
        await wait_until(lambda: nothing_waits(gateway), "the queue is empty")
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in running] == [echoed(8)] * 2
        assert [tokens async for tokens in waiting] == []


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_cancelling_a_running_request_frees_its_slot(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """A client that goes away costs at most the plans in flight, wherever its driver is."""
    async with driver_and_origin(url, run_dir, worker.address) as (driver, other):
        origin = {"driver": driver, "origin": other}[origin_name]
        stream = await origin.submit(max_tokens=2000, prompt_ids=PROMPT)
        await anext(stream)
        stream.cancel("the client went away")
        await wait_until(lambda: is_idle(driver), "slot and blocks are free", timeout_s=1.0)
        assert driver.value("sluicegate_output_tokens_total") < 2000


async def test_cancelling_before_the_first_token_frees_the_slot(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """The driver is known to the store only: the withdrawal finds it."""
    async with driver_and_origin(url, run_dir, worker.address) as (driver, origin):
        worker.gate.clear()
        stream = await origin.submit(max_tokens=2000, prompt_ids=PROMPT)
        await wait_until(lambda: driver.value("sluicegate_slots_in_use") == 1, "it runs")
        stream.cancel("the client went away")
        await wait_until(lambda: not origin.assembly.acts.is_pending, "the store was asked")
        worker.gate.set()
        await wait_until(lambda: is_idle(driver), "slot and blocks are free", timeout_s=1.0)


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_a_deadline_that_passes_in_the_queue_takes_the_request_out_of_it(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """On time, although nothing else happens; and no slot is ever spent on it."""
    async with driver_and_origin(url, run_dir, worker.address) as (driver, other):
        worker.gate.clear()
        running = [await driver.submit(prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(driver), "a driver has both")
        origin = {"driver": driver, "origin": other}[origin_name]
        waiting = await origin.submit(prompt_ids=PROMPT, deadline_us=monotonic_us() + 50_000)
        assert not await nothing_waits(driver)
        answer = await read_all(waiting)
        assert (answer.token_ids, answer.error) == ((), Reason.DEADLINE_EXCEEDED)
        await wait_until(lambda: nothing_waits(driver), "the queue is empty", timeout_s=1.0)
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in running] == [echoed(8)] * 2
        assert driver.value("sluicegate_output_tokens_total") == 16


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_a_deadline_that_passes_while_running_frees_the_slot(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """The origin's clock ends it, wherever its driver is; what came before is part of the answer."""
    async with driver_and_origin(url, run_dir, worker.address) as (driver, other):
        origin = {"driver": driver, "origin": other}[origin_name]
        stream = await origin.submit(max_tokens=2000, prompt_ids=PROMPT, deadline_us=monotonic_us() + 100_000)
        first = await anext(stream)
        worker.gate.clear()
        rest = await read_all(stream)
        tokens = first.token_ids + rest.token_ids
        assert (tokens, rest.error) == (echoed(len(tokens)), Reason.DEADLINE_EXCEEDED)
        worker.gate.set()
        await wait_until(lambda: is_idle(driver), "slot and blocks are free", timeout_s=1.0)


async def test_whenever_deadlines_pass_each_request_ends_once_and_nothing_is_left(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any
) -> None:
    """Offered, handed, claimed, running, finishing: an end may cross any of these, on either side of the relay."""
    moments = random.Random(7)
    async with driver_and_origin(url, run_dir, worker.address) as (driver, origin):

        async def ask(gateway: Member, left_us: int) -> Tokens:
            try:
                stream = await gateway.submit(max_tokens=60, prompt_ids=PROMPT, deadline_us=monotonic_us() + left_us)
            except Refused as refused:
                return Tokens(token_ids=(), error=refused.reason)
            return await read_all(stream)

        async def store_is_empty() -> bool:
            return bool(await redis_client.hlen(QueueKeys.of("fake").entries) == 0)

        soon = [moments.randrange(1_000, 400_000) for _ in range(55)]
        asking = [
            asyncio.create_task(ask(moments.choice((driver, origin)), left_us))
            for left_us in moments.sample([*soon, *[60_000_000] * 5], 60)  # some in time, however slow the machine
        ]
        answers = await asyncio.gather(*asking)
        assert all(answer.token_ids == echoed(len(answer.token_ids)) for answer in answers)
        ends = {(answer.finish, answer.error) for answer in answers}
        ends.discard((None, Reason.DEADLINE_UNREACHABLE))  # where all this takes long enough for waits to be predicted
        assert ends == {("length", None), (None, Reason.DEADLINE_EXCEEDED)}
        await wait_until(lambda: is_idle(driver), "nothing runs and nothing waits")
        assert (len(driver.assembly.streams), len(origin.assembly.streams)) == (0, 0)
        await wait_until(store_is_empty, "the store knows none of them any more")


async def test_a_deadline_that_is_over_is_not_offered(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Time that tokenising took counts, and the store must not hear of what nobody waits for."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        with pytest.raises(Refused) as refused:
            await gateway.submit(deadline_us=monotonic_us())
        assert refused.value.reason is Reason.DEADLINE_EXCEEDED
        assert len(gateway.assembly.streams) == 0
        assert gateway.value("sluicegate_iterations_total") == 0
