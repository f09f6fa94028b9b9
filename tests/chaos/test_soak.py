"""The long form of a case whose short one is in tests/gateway: minutes of it, `CHAOS_SOAK_S` seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import redis.asyncio

from gateway.redis_server import RedisServer
from tests.gateway.front_door import door
from tests.gateway.soak import GREEDY, SMALL, soak
from tests.gateway.worker_peer import WorkerPeer

SOAK_S = float(os.environ.get("CHAOS_SOAK_S", "1200"))

pytestmark = pytest.mark.timeout(SOAK_S + 300)


async def test_nothing_leaks_in_twenty_minutes_of_every_kind_of_end(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, run_dir: Path
) -> None:
    """D07: a block that leaks once in a thousand requests is found by none of the short tests."""
    assert await redis_client.dbsize() == 0
    ends_at_s, rounds = time.monotonic() + SOAK_S, 0
    async with door(redis_server.url, run_dir, worker=WorkerPeer(SMALL), preset=GREEDY) as served:
        while time.monotonic() < ends_at_s:
            await soak(served, num_requests=500, seed=rounds)
            rounds += 1
    assert rounds > 0
