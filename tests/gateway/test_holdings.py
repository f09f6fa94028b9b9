"""Which gateway drives which worker: shared, fenced, and found again after losses of every kind."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest_asyncio

from gateway.directory import Directory
from gateway.holdings import RETURN_S
from gateway.redis_server import RedisServer
from tests.gateway.small_cluster import member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


@pytest_asyncio.fixture
async def url(redis_client: Any, redis_server: RedisServer) -> str:
    """An empty Redis."""
    assert redis_client is not None
    return redis_server.url


async def test_two_gateways_share_two_workers(url: str, run_dir: Path) -> None:
    """Who holds one waits before it takes another."""
    peers = [WorkerPeer(), WorkerPeer()]
    for number, peer in enumerate(peers):
        await peer.start(f"unix:{run_dir}/w{number}")
    workers = tuple(peer.address for peer in peers)
    async with member(url, run_dir, "g0", workers=workers) as g0, member(url, run_dir, "g1", workers=workers) as g1:
        await wait_until(lambda: len(g0.assembly.drivers) + len(g1.assembly.drivers) == 2, "both are driven")
        assert len(g0.assembly.drivers) == len(g1.assembly.drivers) == 1
        await wait_until(lambda: all(len(peer.epochs) == 1 for peer in peers), "both are welcomed, once")
        await g0.ready()
        await g1.ready()
    for peer in peers:
        await peer.kill()


async def test_a_worker_that_has_seen_a_higher_epoch_gets_a_higher_one(url: str, run_dir: Path) -> None:
    """Redis came back empty and counts from one again; the worker does not."""
    peer = WorkerPeer(last_epoch=1000)
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        await wait_until(lambda: peer.epochs == [1001], "it is driven under a new epoch")
    await peer.kill()


async def test_another_gateway_takes_over_the_worker_of_one_that_left(url: str, run_dir: Path) -> None:
    """A worker is never without a driver while any gateway could be one."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    async with (
        member(url, run_dir, "leaves", workers=(peer.address,)) as leaves,
        member(url, run_dir, "comes", workers=(peer.address,)) as comes,
    ):
        await leaves.ready()
        await comes.ready()
        first, second = (leaves, comes) if len(leaves.assembly.drivers) else (comes, leaves)
        assert len(second.assembly.drivers) == 0
        await first.assembly.drain(1.0)
        await wait_until(lambda: len(second.assembly.drivers) == 1, "the other drives it")
        assert (await read_all(await second.submit(max_tokens=4))).finish == "length"
    await peer.kill()


async def test_a_store_that_lost_its_data_gets_everything_told_again(
    redis_client: Any, url: str, run_dir: Path
) -> None:
    """Redis keeps nothing on disk: it coming back empty is a normal event."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        await redis_client.flushall()
        answer = await read_all(await gateway.submit(max_tokens=4))
        assert answer.finish == "length"
        await wait_until(lambda: gateway.assembly.view.serves("fake"), "it is served")
        assert len(gateway.assembly.drivers) == 1
    await peer.kill()


async def test_a_lease_that_the_store_lost_is_left_to_its_holder_for_a_while(
    redis_client: Any, url: str, run_dir: Path
) -> None:
    """The holder runs streams: a gateway that held nothing must not take what the store only forgot."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    holder = Directory(redis_client, gateway_id="holder")
    await holder.take_worker(peer.address)
    async with member(url, run_dir, "g1", workers=(peer.address,)) as g1:
        await wait_until(lambda: g1.assembly.holdings.waits_for(peer.address), "it found the worker held")
        await redis_client.flushall()
        lost_at = time.monotonic()
        await wait_until(lambda: len(peer.epochs) == 1, "the holder did not come back, so it takes it", timeout_s=10.0)
        assert time.monotonic() - lost_at >= RETURN_S
    await peer.kill()


async def test_a_token_budget_below_the_slots_of_a_worker_leaves_some_of_them_empty(url: str, run_dir: Path) -> None:
    """Every slot decodes in every iteration; the budget is a promise on their time."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    assert peer.executor.max_slots > 2
    async with member(url, run_dir, workers=(peer.address,), token_budget=2) as gateway:
        await gateway.ready()
        peer.gate.clear()
        streams = [await gateway.submit(max_tokens=100) for _ in range(4)]
        peer.gate.set()
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [answer.finish for answer in answers] == ["length"] * 4
        assert max(len(plan.decode) for plan in peer.plans) == 2
    await peer.kill()
