"""The embedded Redis starts, answers, ends, and dies with its parent."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import redis.asyncio

from admission.redis_client import check_server, connect
from gateway.redis_server import RedisServer, RedisServerError


async def test_the_embedded_redis_answers_on_its_socket_and_evicts_nothing(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer
) -> None:
    """Everything else rests on a store that is private to this user and never drops a key by itself."""
    assert await redis_client.ping()
    assert await check_server(redis_client)
    assert stat.S_IMODE(redis_server.socket.stat().st_mode) == 0o700


async def test_stop_ends_the_process_and_may_be_repeated(run_dir: Path, redis_binary: Path | None) -> None:
    """The owner stops Redis last, and may come here twice on its way out."""
    server = RedisServer(run_dir, binary=redis_binary)
    await server.start()
    await server.stop()
    await server.stop()
    assert await server.wait() == 0
