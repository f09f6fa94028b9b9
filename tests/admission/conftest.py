"""The queue in Redis, as gateways have it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio
import redis.asyncio

from admission.queue import QueueBounds
from admission.redis_client import connect
from admission.redis_queue import RedisQueue
from gateway.redis_server import RedisServer
from tests.admission.queue_entries import BOUND, Opener


@pytest_asyncio.fixture
async def open_queue() -> AsyncIterator[Opener]:
    """Queues as separate gateways have them: each with its own client."""
    async with AsyncExitStack() as stack:

        def opened(url: str, *, max_passes: int = 4, driver_lease_s: float = 10.0) -> RedisQueue:
            client = connect(url)
            bounds = QueueBounds(max_requests=BOUND, max_passes=max_passes)
            queue = RedisQueue(client, model="m", bounds=bounds, driver_lease_s=driver_lease_s)
            stack.push_async_callback(client.aclose)
            stack.push_async_callback(queue.aclose)
            return queue

        yield opened


@pytest_asyncio.fixture
async def queue(redis_client: redis.asyncio.Redis, redis_server: RedisServer, open_queue: Opener) -> RedisQueue:
    assert await redis_client.dbsize() == 0
    return open_queue(redis_server.url)
