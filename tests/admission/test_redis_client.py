"""A call to Redis ends soon, whatever Redis does, and its reply reaches nobody else."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import redis.asyncio

from admission.queue import StoreUnavailable
from admission.redis_client import CALL_TIMEOUT_S, MAX_CONNECTIONS, blocking_twin, bounded, check_server, connect
from gateway.redis_server import RedisServer
from tests.admission.redis_proxy import RedisProxy

HANG_GUARD_S = CALL_TIMEOUT_S + 1.0


async def ping(client: redis.asyncio.Redis) -> None:
    async with bounded("ping"):
        await client.ping()


async def test_nothing_is_left_to_the_defaults_of_redis_py() -> None:
    """G06: they repeat for seconds what has failed, and have changed from version to version."""
    client = connect("redis://localhost:6379")
    twin = blocking_twin(client)
    assert client.connection_pool.max_connections == MAX_CONNECTIONS
    assert twin.connection_pool is not client.connection_pool
    for pool in (client.connection_pool, twin.connection_pool):
        kwargs = pool.connection_kwargs
        assert kwargs["socket_timeout"] is None  # `bounded` holds the only clock
        assert kwargs["socket_connect_timeout"] == CALL_TIMEOUT_S
        assert kwargs["retry"].get_retries() == 0
        assert "maint_notifications_pool_handler" not in kwargs
    await client.aclose()


@pytest.mark.parametrize("url", ["unix:///nowhere/redis.sock", "redis://127.0.0.1:1"])
async def test_a_redis_that_is_not_there_is_found_out_at_once(url: str) -> None:
    """G06: a connection refused is an answer; waiting for another one would cost every request seconds."""
    client = connect(url)
    with pytest.raises(StoreUnavailable, match=r"^ping: "):
        await asyncio.wait_for(ping(client), HANG_GUARD_S)
    await client.aclose()


async def test_a_peer_that_accepts_and_says_nothing_costs_about_a_second() -> None:
    """G06: a black hole looks like a slow Redis: only time tells."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client has had enough
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    client = connect(f"redis://127.0.0.1:{port}")
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(ping(client), HANG_GUARD_S)
    await client.aclose()
    silent.close()


async def test_a_frozen_redis_costs_every_caller_about_a_second(own_redis: RedisServer) -> None:
    """G06: also those who wait for a connection behind those who wait for Redis: the bound is on the whole call."""
    client = connect(own_redis.url)
    await ping(client)
    os.kill(own_redis.pid, signal.SIGSTOP)
    started = time.monotonic()
    outcomes = await asyncio.gather(*(ping(client) for _ in range(3 * MAX_CONNECTIONS)), return_exceptions=True)
    assert time.monotonic() - started < HANG_GUARD_S
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    os.kill(own_redis.pid, signal.SIGCONT)
    await ping(client)
    await client.aclose()


async def test_a_cancelled_call_never_leaves_its_reply_to_the_next_one(
    redis_server: RedisServer, run_dir: Path
) -> None:
    """G04: crossed replies would show one client's text to another."""
    choose = random.Random(4)
    proxy = RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket)
    async with proxy.running():
        proxy.delay_s = 0.01
        client = connect(proxy.url)

        async def one(tag: str) -> bytes:
            async with bounded("echo", 10.0):
                return bytes(await client.echo(tag))

        async def several(tag: str) -> bytes:
            async with bounded("echo", 10.0), client.pipeline(transaction=False) as together:
                first, second = await together.echo(tag).echo(tag).execute()
                assert first == second
                return bytes(second)

        async def hang_up(call: asyncio.Task[bytes], after_s: float) -> None:
            await asyncio.sleep(after_s)
            call.cancel()

        calls = {}
        async with asyncio.TaskGroup() as hang_ups:
            for number in range(400):
                tag = f"request {number}"
                call = asyncio.create_task(one(tag) if number % 2 else several(tag))
                calls[tag] = call
                if choose.random() < 0.5:
                    hang_ups.create_task(hang_up(call, choose.uniform(0, 0.1)))
            await asyncio.wait(calls.values())
        answered = {tag: call.result() for tag, call in calls.items() if not call.cancelled()}
        assert len(answered) < len(calls)
        assert all(answer == tag.encode() for tag, answer in answered.items())
        await client.aclose()


async def test_a_call_that_ran_out_of_time_never_leaves_its_reply_either(own_redis: RedisServer) -> None:
    """A frozen Redis answers everything at once when it thaws."""
    client = connect(own_redis.url)
    await ping(client)
    os.kill(own_redis.pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable):
        async with bounded("echo", 0.05):
            await client.echo("old")
    os.kill(own_redis.pid, signal.SIGCONT)
    assert [await client.echo(str(number)) for number in range(20)] == [str(number).encode() for number in range(20)]
    await client.aclose()


async def test_a_loop_of_calls_ends_when_it_is_cancelled(redis_client: redis.asyncio.Redis) -> None:
    """A cancel may fall into any moment of a call; one that got lost would leave a task that nobody can end."""

    async def loop() -> None:
        while True:
            await ping(redis_client)

    for number in range(100):
        looping = asyncio.create_task(loop())
        for _ in range(number):
            await asyncio.sleep(0)
        looping.cancel()
        ended, _ = await asyncio.wait([looping], timeout=HANG_GUARD_S)
        assert ended


async def test_a_cancel_that_something_below_swallowed_is_raised_at_the_end_of_the_act() -> None:
    """Libraries have lost cancels in every release; a loop of acts must end all the same."""
    begun = asyncio.Event()

    async def act() -> None:
        async with bounded("act"):
            with suppress(asyncio.CancelledError):
                begun.set()
                await asyncio.sleep(HANG_GUARD_S)

    task = asyncio.create_task(act())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_redis_that_evicts_is_refused(own_redis: RedisServer) -> None:
    """G08: it would drop accepted requests without a word."""
    client = connect(own_redis.url)
    await client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreUnavailable, match=r"set maxmemory-policy to noeviction \(it is allkeys-lru\)"):
        await check_server(client)
    await client.aclose()


async def test_a_redis_that_is_too_old_is_refused(
    redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts rely on what 6.2 brought; an error at start is better than one in a script."""
    monkeypatch.setattr("admission.redis_client._LOWEST_VERSION", (99, 0))
    with pytest.raises(StoreUnavailable, match="too old"):
        await check_server(redis_client)
