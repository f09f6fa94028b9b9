"""How Sluicegate talks to Redis: bounded in time, one owner per connection, no silent second attempt.

redis-py repeats failed commands for seconds by default; here a call is tried once, since only the caller knows whether
its outcome still matters. A call that is cancelled or runs out of time closes its connection: the late reply dies with
it, and never becomes the answer of the next caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

from admission.queue import StoreUnavailable

CALL_TIMEOUT_S = 1.0
"""The longest that one act may take, waiting for a connection included. A healthy Redis needs a millisecond."""

MAX_CONNECTIONS = 32
"""An act takes tens of microseconds in Redis, but some turns of the event loop here. On a busy machine, where each of
these takes 20 ms, so many connections still carry five hundred acts a second."""

_LOWEST_VERSION = (6, 2)

_NO_NOTICES = MaintNotificationsConfig(enabled=False)  # hosted Redis sends them, and redis-py stretches time-outs then


def connect(url: str) -> redis.asyncio.Redis:
    """A client for ``unix://``, ``redis://`` or ``rediss://`` that answers in bytes. Connects at the first call.

    Every call on it belongs into ``bounded``, which holds the only clock. The socket time-out of redis-py is off: it is
    built on ``asyncio.wait_for``, which before Python 3.12 forgets a cancel that comes just as a write is done, and a
    loop of calls would outlive its owner.
    """
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=None,
        socket_timeout=None,
        socket_connect_timeout=CALL_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        maint_notifications_config=_NO_NOTICES,
    )
    return redis.asyncio.Redis.from_pool(pool)


def blocking_twin(client: redis.asyncio.Redis) -> redis.asyncio.Redis:
    """A client of the same server for calls that block there, on connections of its own.

    A blocked connection serves nobody else, so these are not taken from the pool that acts share.
    """
    pool = client.connection_pool
    blocking = redis.asyncio.ConnectionPool(
        connection_class=pool.connection_class, maint_notifications_config=_NO_NOTICES, **pool.connection_kwargs
    )
    return redis.asyncio.Redis.from_pool(blocking)


@asynccontextmanager
async def bounded(act: str, timeout_s: float = CALL_TIMEOUT_S) -> AsyncIterator[None]:
    """Run the calls of one act within ``timeout_s``. Every failure of Redis becomes ``StoreUnavailable``.

    A cancel that comes during the act is never lost, whatever a library below makes of it: callers loop over acts.
    """
    task = asyncio.current_task()
    cancels_before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except (RedisError, OSError) as error:
        _heed_cancel(task, cancels_before)
        raise StoreUnavailable(f"{act}: {error or type(error).__name__}") from error
    _heed_cancel(task, cancels_before)


def _heed_cancel(task: asyncio.Task[object] | None, cancels_before: int) -> None:
    if task is not None and task.cancelling() > cancels_before:
        raise asyncio.CancelledError


async def check_server(client: redis.asyncio.Redis) -> str:
    """The server's version, when it can hold a queue. Raises ``StoreUnavailable`` with a sentence otherwise."""
    async with bounded("check"):
        info = await client.info("server")
        policy = (await client.info("memory"))["maxmemory_policy"]
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < _LOWEST_VERSION:
        raise StoreUnavailable(f"Redis {version} is too old: 6.2 or newer is needed")
    if policy != "noeviction":
        raise StoreUnavailable(f"Redis may evict queued requests: set maxmemory-policy to noeviction (it is {policy})")
    return version
