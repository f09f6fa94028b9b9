"""The machinery of whole gateways: a request in, tokens out, whatever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.errors import Reason, Refused
from gateway.redis_server import RedisServer
from tests.gateway.small_cluster import member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript

ECHO = FakeScript(output=Echo(kind="echo"), slots=4)


@pytest_asyncio.fixture
async def worker(run_dir: Path) -> AsyncIterator[WorkerPeer]:
    peer = WorkerPeer(ECHO)
    await peer.start(f"unix:{run_dir}/w0")
    yield peer
    peer.gate.set()
    await peer.kill()


async def test_a_request_gives_every_token_once_and_in_order(
    redis_client: object, redis_server: RedisServer, run_dir: Path, worker: WorkerPeer
) -> None:
    """The spine: queue, claim, plan, report, stream."""
    async with member(redis_server.url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        answer = await read_all(await gateway.submit(max_tokens=10, prompt_ids=tuple(range(40, 60))))
        assert (answer.token_ids, answer.finish) == (tuple(range(40, 50)), "length")
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 0, "the slot is free again")
