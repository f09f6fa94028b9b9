"""Requests that go on elsewhere, token for token, whatever was lost: a worker, a driver's gateway, the store."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from admission.queue import QueueBounds
from gateway.clock import monotonic_us
from gateway.errors import Reason
from gateway.redis_server import RedisServer
from gateway.stream import Stream
from tests.gateway.small_cluster import Member, is_idle, member, nothing_waits, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import FakeScript, WrongLiveBlocks
from workers.wire import Sampling

SAMPLING = Sampling(temperature=1.0, seed=17, ignore_eos=True)
NUM_TOKENS = 400


@pytest.fixture
async def workers(run_dir: Path) -> AsyncIterator[tuple[WorkerPeer, WorkerPeer]]:
    """Two workers that say words drawn by prompt, seed and position."""
    peers = (WorkerPeer(FakeScript(slots=4)), WorkerPeer(FakeScript(slots=4)))
    for number, peer in enumerate(peers):
        await peer.start(f"unix:{run_dir}/w{number}")
    yield peers
    for peer in peers:
        peer.gate.set()
        await peer.kill()


@contextlib.asynccontextmanager
async def driven_by_one(url: str, run_dir: Path, script: FakeScript) -> AsyncIterator[tuple[Member, WorkerPeer]]:
    """A gateway that is ready, with one worker."""
    worker = WorkerPeer(script)
    await worker.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        yield gateway, worker
    await worker.kill()


async def submit(gateway: Member) -> Stream:
    return await gateway.submit(max_tokens=NUM_TOKENS, sampling=SAMPLING)


async def undisturbed(gateway: Member) -> tuple[int, ...]:
    """What a request gives when nothing happens."""
    return (await read_all(await submit(gateway))).token_ids


async def wholes(streams: Sequence[Stream], firsts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """All tokens of ``streams``, of which ``firsts`` have been read. Each must end well."""
    rests = [await read_all(stream) for stream in streams]
    assert {rest.finish for rest in rests} == {"length"}
    return [first + rest.token_ids for first, rest in zip(firsts, rests, strict=True)]


async def test_what_a_killed_worker_ran_continues_on_another_token_for_token(
    url: str, run_dir: Path, workers: tuple[WorkerPeer, WorkerPeer]
) -> None:
    """A worker's death is a pause: nothing lost, nothing twice, and no token of another continuation."""
    async with member(url, run_dir, workers=tuple(worker.address for worker in workers)) as gateway:
        await gateway.ready()
        await wait_until(lambda: len(gateway.assembly.drivers) == 2, "both are driven")
        whole = await undisturbed(gateway)
        streams = [await submit(gateway) for _ in range(6)]
        firsts = [(await anext(stream)).token_ids for stream in streams]
        await workers[0].kill()
        assert await wholes(streams, firsts) == [whole] * 6
        assert 1 <= gateway.value("sluicegate_moves_total") <= 4
        emitted = {start.emitted for plan in workers[1].plans for start in plan.starts}
        assert max(emitted) > 0, "the next worker computes what is there as a prompt, and emits what is due"
        assert gateway.value("sluicegate_stale_tokens_total") == 0
        await wait_until(lambda: is_idle(gateway), "everything is free again")


async def test_what_a_dead_gateway_drove_for_others_continues_elsewhere(
    url: str, run_dir: Path, workers: tuple[WorkerPeer, WorkerPeer]
) -> None:
    """Its own clients are gone with it; those of others notice a pause."""
    async with member(url, run_dir, "origin", workers=(workers[1].address,)) as origin:
        async with member(url, run_dir, "dying", workers=(workers[0].address,)) as dying:
            await origin.ready()
            await wait_until(lambda: len(dying.assembly.drivers) == len(origin.assembly.drivers) == 1, "both drive")
            whole = await undisturbed(origin)
            streams = [await submit(origin) for _ in range(8)]
            firsts = [(await anext(stream)).token_ids for stream in streams]
            workers[0].gate.clear()
            assert origin.assembly.streams.driven_by("dying")
        assert await wholes(streams, firsts) == [whole] * 8
        assert origin.value("sluicegate_moves_total") >= 1
        await wait_until(lambda: is_idle(origin), "everything is free again")


async def test_a_request_moves_only_so_often(url: str, run_dir: Path) -> None:
    """One that itself kills workers must not take them all with it."""
    faults = tuple(WrongLiveBlocks(kind="wrong_live_blocks", at=at) for at in (3, 6, 9))
    async with driven_by_one(url, run_dir, FakeScript(faults=faults)) as (gateway, worker):
        answer = await read_all(await submit(gateway))
        assert answer.error is Reason.WORKER_LOST
        assert answer.token_ids
        assert gateway.value("sluicegate_moves_total") == 2
        await wait_until(lambda: len(worker.epochs) == 4, "the worker is driven anew")
        assert len(await undisturbed(gateway)) == NUM_TOKENS
        await wait_until(lambda: is_idle(gateway), "everything is free again")


async def test_what_ran_may_pass_the_bound_of_the_queue_and_keeps_its_age(url: str, run_dir: Path) -> None:
    """It was accepted within the bound once; and its turn is not behind all that came after it."""
    worker = WorkerPeer(FakeScript(slots=1))
    await worker.start(f"unix:{run_dir}/w0")
    options = {"workers": (worker.address,), "bounds": QueueBounds(max_requests=1)}
    async with member(url, run_dir, **options) as gateway:
        await gateway.ready()
        started = await submit(gateway)
        first = (await anext(started)).token_ids
        await wait_until(lambda: nothing_waits(gateway), "it is claimed")
        waiting = await submit(gateway)
        await worker.kill()

        async def both_wait() -> bool:
            return (await gateway.assembly.queues.of("fake").stats()).requests == 2

        await wait_until(both_wait, "both wait")
        await worker.restart()
        rest = await read_all(started)
        assert len(first + rest.token_ids) == NUM_TOKENS
        assert waiting.next_position < NUM_TOKENS, "it had its turn afterwards"
        assert (await read_all(waiting)).finish == "length"
    await worker.kill()


async def test_a_deadline_passes_also_while_a_request_waits_to_go_on(url: str, run_dir: Path) -> None:
    """On time, with nobody there to run it, and it leaves nothing in the queue."""
    async with driven_by_one(url, run_dir, FakeScript()) as (gateway, worker):
        deadline_us = monotonic_us() + 300_000
        stream = await gateway.submit(max_tokens=2000, deadline_us=deadline_us)
        await anext(stream)
        left = await submit(gateway)
        await anext(left)
        await worker.kill()
        await wait_until(lambda: stream.num_moves == left.num_moves == 1, "both are offered again")
        left.cancel("the client went away")
        assert (await read_all(stream)).error is Reason.DEADLINE_EXCEEDED
        await wait_until(lambda: nothing_waits(gateway), "the queue is empty")
        await worker.restart()
        await wait_until(lambda: len(worker.epochs) == 2, "the worker is driven anew")
        num_plans = len(worker.plans)
        assert len(await undisturbed(gateway)) == NUM_TOKENS
        assert len([start for plan in worker.plans[num_plans:] for start in plan.starts]) == 1


async def test_a_request_waits_for_a_store_that_is_away(own_redis: RedisServer, run_dir: Path) -> None:
    """Worker and Redis gone at once: what was accepted goes on when both are back."""
    async with driven_by_one(own_redis.url, run_dir, FakeScript()) as (gateway, worker):
        whole = await undisturbed(gateway)
        stream = await submit(gateway)
        first = (await anext(stream)).token_ids
        os.kill(own_redis.pid, signal.SIGSTOP)
        await worker.kill()
        await wait_until(lambda: stream.num_moves == 1, "it is to be offered again")
        await worker.restart()
        os.kill(own_redis.pid, signal.SIGCONT)
        assert await wholes([stream], [first]) == [whole]


async def test_a_store_that_stays_away_ends_what_was_to_go_on(
    own_redis: RedisServer, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without a deadline is told as well."""
    monkeypatch.setattr("gateway.moves.MOST_OFFER_S", 0.1)
    async with driven_by_one(own_redis.url, run_dir, FakeScript()) as (gateway, worker):
        stream = await submit(gateway)
        await anext(stream)
        os.kill(own_redis.pid, signal.SIGSTOP)
        await worker.kill()
        assert (await read_all(stream)).error is Reason.STORE_UNAVAILABLE
        os.kill(own_redis.pid, signal.SIGCONT)
