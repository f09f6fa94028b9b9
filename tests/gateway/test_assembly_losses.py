"""Workers and stores that die, hang or forget, under a whole gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from admission.redis_queue import OFFERS_AT_ONCE
from gateway.driver import Driver
from gateway.errors import Reason, Refused
from gateway.redis_server import RedisServer
from tests.gateway.small_cluster import PROMPT, echoed, is_idle, member, nothing_waits, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


async def test_a_killed_worker_ends_its_streams_with_a_typed_error_and_is_driven_again(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Where requests may not move: never a half answer that looks whole, and nothing is left of it afterwards."""
    async with member(url, run_dir, workers=(worker.address,), max_moves=0) as gateway:
        await gateway.ready()
        streams = [await gateway.submit(max_tokens=2000, prompt_ids=PROMPT) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        await worker.kill()
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [answer.error for answer in answers] == [Reason.WORKER_LOST] * 2
        await wait_until(lambda: is_idle(gateway), "nothing is held")
        await worker.restart()
        await wait_until(lambda: len(gateway.assembly.drivers) == 1, "the worker is driven again")
        assert (await read_all(await gateway.submit(prompt_ids=PROMPT))).token_ids == echoed(8)
        assert worker.epochs == sorted(set(worker.epochs)), "every connection has a higher epoch"


async def test_capacity_is_that_of_the_workers_that_are_driven_here(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """How full is a share of something: a worker that is lost takes its slots out of it."""
    async with member(url, run_dir, workers=(worker.address,), kv_blocks=40) as gateway:
        await gateway.ready()

        def capacity() -> tuple[float, float]:
            return gateway.value("sluicegate_slots"), gateway.value("sluicegate_kv_blocks")

        assert capacity() == (2, 40)
        await worker.kill()
        await wait_until(lambda: capacity() == (0, 0), "nothing is driven")
        await worker.restart()
        await wait_until(lambda: capacity() == (2, 40), "it is driven again")


async def test_a_worker_that_makes_no_progress_counts_as_lost(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """A hung process keeps its socket open for ever."""
    async with member(url, run_dir, workers=(worker.address,), progress_timeout_s=0.2) as gateway:
        await gateway.ready()
        worker.gate.clear()
        stream = await gateway.submit(prompt_ids=PROMPT)
        await wait_until(lambda: len(worker.epochs) == 2, "the worker is driven anew")
        worker.gate.set()
        assert (await read_all(stream)).token_ids == echoed(8)


async def test_a_frozen_store_leaves_running_streams_alone_and_refuses_new_ones(
    own_redis: RedisServer, run_dir: Path, worker: WorkerPeer
) -> None:
    """Running streams do not depend on Redis; new work is told within about a second, and all is well afterwards."""
    async with member(own_redis.url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        running = await gateway.submit(max_tokens=300, prompt_ids=PROMPT)
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 1, "it runs")
        os.kill(own_redis.pid, signal.SIGSTOP)
        try:
            started = asyncio.get_running_loop().time()
            with pytest.raises(Refused) as refused:
                await gateway.submit(prompt_ids=PROMPT)
            assert refused.value.reason is Reason.STORE_UNAVAILABLE
            assert asyncio.get_running_loop().time() - started < 2.0
            worker.gate.set()
            assert (await read_all(running)).token_ids == echoed(300)
            await wait_until(lambda: not gateway.assembly.machinery.readiness().ready, "the gateway is unready")
        finally:
            os.kill(own_redis.pid, signal.SIGCONT)
        await gateway.ready()
        assert (await read_all(await gateway.submit(prompt_ids=PROMPT))).token_ids == echoed(8)
        await wait_until(lambda: is_idle(gateway), "nothing leaks")


async def test_what_waits_in_a_store_that_loses_its_data_is_offered_again(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever claim it: without this its client waits for ever. What runs is not touched."""
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 0.02)
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        running = [await gateway.submit(max_tokens=1500, prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 2, "both slots are taken")
        await wait_until(lambda: all(stream.next_position for stream in running), "both have begun")
        worker.gate.clear()
        waiting = await gateway.submit(max_tokens=8, prompt_ids=PROMPT)
        await redis_client.flushall()
        await wait_until(lambda: waiting.num_moves == 1, "it is offered again")
        worker.gate.set()
        assert (await read_all(waiting)).token_ids == echoed(8)
        assert [stream.num_moves for stream in running] == [0, 0]


async def test_a_long_prompt_that_runs_when_the_store_loses_its_data_is_left_alone(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first token takes longer than any patience with what waits, and its driver is here."""
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 0.02)
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        stream = await gateway.submit(max_tokens=8, prompt_ids=PROMPT)
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 1, "it runs")
        waiting = [await gateway.submit(max_tokens=8, prompt_ids=PROMPT) for _ in range(2)]
        await redis_client.flushall()
        await wait_until(lambda: waiting[-1].num_moves == 1, "as long as it takes to give up what waits")
        worker.gate.set()
        assert {(await read_all(each)).finish for each in (stream, *waiting)} == {"length"}
        assert stream.num_moves == 0


async def test_what_still_waits_to_be_offered_was_not_forgotten(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a storm an offer waits its turn: offered again meanwhile, it would run twice, once for nobody."""
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 0.02)
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        running = [await gateway.submit(max_tokens=8, prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(gateway), "a driver has both")
        waiting = await gateway.submit(max_tokens=8, prompt_ids=PROMPT)
        async with AsyncExitStack() as turns:
            for _ in range(OFFERS_AT_ONCE):
                await turns.enter_async_context(gateway.assembly.queues._offers.turn("test"))
            submitting = asyncio.create_task(gateway.submit(max_tokens=8, prompt_ids=PROMPT))
            await wait_until(lambda: len(gateway.assembly.streams) == 4, "its stream is open")
            await redis_client.flushall()
            await wait_until(lambda: waiting.num_moves == 1, "as long as it takes to give up what waits")
        worker.gate.set()
        late = await submitting
        assert {(await read_all(each)).finish for each in (*running, waiting, late)} == {"length"}
        assert late.num_moves == 0


@pytest.mark.usefixtures("redis_client")
async def test_a_ledger_that_does_not_balance_is_found_when_idle_and_begun_anew(
    redis_server: RedisServer, run_dir: Path, worker: WorkerPeer
) -> None:
    """A promise that leaks is a fault of ours: better loud, with an empty worker, than slowly less and less memory."""
    async with member(redis_server.url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        (driver,) = gateway.assembly.drivers._drivers.values()
        assert isinstance(driver, Driver)
        driver._scheduler._ledger._expected += 1
        assert (await read_all(await gateway.submit(max_tokens=4))).finish == "length"
        await wait_until(lambda: len(worker.epochs) == 2, "the worker is driven anew")
        assert (await read_all(await gateway.submit(max_tokens=4))).finish == "length"
