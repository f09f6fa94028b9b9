"""The queue in Redis when replies are lost, and when Redis is frozen or out of memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import redis.asyncio

from admission.classes import BATCH, INTERACTIVE
from admission.queue import Asked, ClassRule, Offered, QueueStats, StoreUnavailable, Withdrawn
from admission.redis_client import connect
from admission.redis_queue import RedisQueue
from gateway.redis_server import RedisServer
from tests.admission.queue_entries import (
    BOUND,
    DRIVER,
    NO_REPLY_S,
    NOTHING_WAITS,
    OTHER_DRIVER,
    Opener,
    entry,
    ids,
    weakest,
)
from tests.admission.redis_proxy import RedisProxy
from tests.support import wait_until


async def test_a_claim_whose_reply_was_lost_is_given_again_once(
    redis_server: RedisServer, queue: RedisQueue, open_queue: Opener, run_dir: Path
) -> None:
    """G09: popped and never arrived is how queues lose work."""
    async with RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket).running() as proxy:
        driver = open_queue(proxy.url)
        await queue.offer(entry("e"))
        await driver.stats()
        proxy.loses_replies = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.claim(DRIVER, Asked(slots=1)), NO_REPLY_S)
        assert await queue.stats() == NOTHING_WAITS
        proxy.loses_replies = False
        assert ids(await driver.claim(DRIVER, Asked(slots=1))) == ["e"]
        assert await driver.claim(DRIVER, Asked(slots=1)) == ()


async def test_an_exchange_whose_reply_was_lost_still_names_its_victim(
    redis_server: RedisServer, queue: RedisQueue, open_queue: Opener, run_dir: Path
) -> None:
    """Else the driver would run on what the store has given up to the line."""
    async with RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket).running() as proxy:
        driver = open_queue(proxy.url)
        await queue.offer(entry("low"))
        (low,) = await driver.claim(DRIVER, Asked(slots=1))
        await queue.offer(entry("high", INTERACTIVE))
        proxy.loses_replies = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.claim(DRIVER, Asked(slots=0, weakest=weakest(low))), NO_REPLY_S)
        await queue.withdraw("high")
        proxy.loses_replies = False
        (again,) = await driver.claim(DRIVER, Asked(slots=0, weakest=weakest(low)))
        assert (again.entry.entry_id, again.victim_id) == ("high", "low")


async def test_what_was_withdrawn_on_its_way_to_a_driver_is_not_given_again(
    redis_server: RedisServer, queue: RedisQueue, open_queue: Opener, run_dir: Path
) -> None:
    """It would run for nobody."""
    async with RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket).running() as proxy:
        driver = open_queue(proxy.url)
        await queue.offer(entry("e"))
        proxy.loses_replies = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.claim(DRIVER, Asked(slots=1)), NO_REPLY_S)
        await queue.withdraw("e")
        proxy.loses_replies = False
        await queue.claim(DRIVER, Asked(slots=0))
        assert await driver.claim(DRIVER, Asked(slots=1)) == ()


async def test_cancelled_waits_lose_no_entry(
    redis_server: RedisServer, queue: RedisQueue, open_queue: Opener, run_dir: Path
) -> None:
    """G04: a driver may be interrupted between the pop and its reply; the entry must find it all the same, once."""
    async with RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket).running() as proxy:
        driver = open_queue(proxy.url)
        proxy.delay_s = 0.004
        received: list[str] = []
        for number in range(30):
            received += ids(await driver.claim(DRIVER, Asked(slots=1)))
            wait = asyncio.create_task(driver.next_handed(DRIVER, 5.0))
            await queue.offer(entry(f"e{number}"))
            await asyncio.sleep(number / 2000)  # cancels fall into every part of the wait
            wait.cancel()
            (outcome,) = await asyncio.gather(wait, return_exceptions=True)
            if isinstance(outcome, tuple):
                received += ids(outcome)
        received += ids(await driver.claim(DRIVER, Asked(slots=30)))
        assert sorted(received) == sorted(f"e{number}" for number in range(30))


async def test_an_offer_to_a_frozen_redis_takes_place_at_most_once(own_redis: RedisServer, open_queue: Opener) -> None:
    """Its outcome is unknown; repeating it is safe, and so is giving it up."""
    queue = open_queue(own_redis.url)
    await queue.stats()
    os.kill(own_redis.pid, signal.SIGSTOP)
    offers = (queue.offer(entry(entry_id)) for entry_id in ("repeated", "given up"))
    outcomes = await asyncio.wait_for(asyncio.gather(*offers, return_exceptions=True), 2.0)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    os.kill(own_redis.pid, signal.SIGCONT)
    await queue.withdraw("given up")
    assert (await queue.offer(entry("repeated"))).outcome is Offered.QUEUED
    assert (await queue.stats()).requests == 1
    assert ids(await queue.claim(DRIVER, Asked(slots=5))) == ["repeated"]


async def test_a_driver_that_waits_on_a_frozen_redis_is_told(own_redis: RedisServer, open_queue: Opener) -> None:
    """A blocked connection has no time-out of its own, so the wait must have one."""
    queue = open_queue(own_redis.url)
    waiting = asyncio.create_task(queue.next_handed(DRIVER, 0.3))
    client = connect(own_redis.url)
    await wait_until(lambda: is_blocked(client), "the driver waits")
    os.kill(own_redis.pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(waiting, 4.0)
    os.kill(own_redis.pid, signal.SIGCONT)
    await client.aclose()


async def is_blocked(client: redis.asyncio.Redis) -> bool:
    return int((await client.info("clients"))["blocked_clients"]) > 0


async def test_a_redis_without_memory_refuses_offers_and_lets_go_of_the_rest(
    own_redis: RedisServer, open_queue: Opener
) -> None:
    """G08: an offer refused half way would be counted for ever, and what ends must always be able to end."""
    queue = open_queue(own_redis.url)
    for number in range(5):
        await queue.offer(entry(f"e{number}"))
    claimed = ids(await queue.claim(DRIVER, Asked(slots=2)))
    before = await queue.stats()
    client = connect(own_redis.url)
    await client.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await queue.offer(entry("new"))
    assert await queue.stats() == before
    assert ids(await queue.claim(DRIVER, Asked(slots=1))) == ["e2"]
    assert await queue.next_handed(DRIVER, 0.0) == ()
    await queue.give_back(DRIVER, claimed[:1])
    await queue.settle(DRIVER, claimed[1:])
    assert (await queue.withdraw("e3")).outcome is Withdrawn.WITHDRAWN
    await queue.withdraw("unknown")
    await queue.forget_driver(DRIVER)
    assert (await queue.stats()).requests == 2
    await client.aclose()


async def test_a_redis_without_memory_still_passes_over_and_exchanges(
    own_redis: RedisServer, open_queue: Opener
) -> None:
    """G08: each changes several entries at once; half done, an entry would lie in two places or in none."""
    queue = open_queue(own_redis.url, max_passes=1)
    await queue.offer(entry("low", tokens=50))
    (low,) = await queue.claim(DRIVER, Asked(slots=1))
    for name, of, tokens in (("large", INTERACTIVE, 100), ("small", INTERACTIVE, 10), ("last", BATCH, 10)):
        await queue.offer(entry(name, of, tokens))
    client = connect(own_redis.url)
    await client.config_set("maxmemory", 1)
    assert ids(await queue.claim(OTHER_DRIVER, Asked(slots=2, kv_tokens=20))) == ["small"]
    (large,) = await queue.claim(DRIVER, Asked(slots=1, kv_tokens=50, weakest=weakest(low)))
    assert (large.entry.entry_id, large.victim_id) == ("large", "low")
    assert await queue.stats() == QueueStats(requests=2, tokens=60, by_class=(("batch", 2, 60),))
    await client.aclose()


async def test_a_redis_without_memory_sheds_nobody(own_redis: RedisServer, open_queue: Opener) -> None:
    """The newcomer is refused before it changed anything; who it would have displaced waits on."""
    queue = open_queue(own_redis.url)
    for number in range(BOUND):
        await queue.offer(entry(f"e{number}"), ClassRule(may_be_shed=True))
    client = connect(own_redis.url)
    await client.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await queue.offer(entry("high", INTERACTIVE), ClassRule(sheds=True))
    assert (await queue.stats()).by_class == (("batch", BOUND, 10 * BOUND),)
    await client.config_set("maxmemory", 0)
    shed = (await queue.offer(entry("high", INTERACTIVE), ClassRule(sheds=True))).shed
    assert [one.entry_id for one in shed] == [f"e{BOUND - 1}"]
    await client.aclose()


async def test_an_offer_whose_reply_was_lost_still_names_what_it_shed(
    redis_server: RedisServer, queue: RedisQueue, open_queue: Opener, run_dir: Path
) -> None:
    """Else nobody would tell the clients of what was displaced."""
    async with RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket).running() as proxy:
        gateway = open_queue(proxy.url)
        for number in range(BOUND):
            await queue.offer(entry(f"e{number}"), ClassRule(may_be_shed=True))
        await gateway.stats()
        proxy.loses_replies = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gateway.offer(entry("high", INTERACTIVE), ClassRule(sheds=True)), NO_REPLY_S)
        proxy.loses_replies = False
        again = await gateway.offer(entry("high", INTERACTIVE), ClassRule(sheds=True))
        assert [one.entry_id for one in again.shed] == [f"e{BOUND - 1}"]
        assert (await queue.stats()).requests == BOUND


async def test_a_full_queue_says_so_also_without_memory(own_redis: RedisServer, open_queue: Opener) -> None:
    """A refusal writes nothing, so nothing can be refused to it."""
    queue = open_queue(own_redis.url)
    for number in range(BOUND):
        await queue.offer(entry(f"e{number}"))
    client = connect(own_redis.url)
    await client.config_set("maxmemory", 1)
    assert (await queue.offer(entry("new"))).outcome is Offered.QUEUE_FULL
    await client.aclose()


async def test_a_redis_without_memory_takes_nothing_of_a_group(own_redis: RedisServer, open_queue: Opener) -> None:
    """G08: handed over or queued in part it would be half a request, and its origin told that nothing is known."""
    queue = open_queue(own_redis.url)
    await queue.claim(DRIVER, Asked(slots=2))
    group = [entry(f"g{number}") for number in range(4)]
    client = connect(own_redis.url)
    await client.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await queue.offer_group(group)
    assert await queue.stats() == NOTHING_WAITS
    assert await queue.unknown([one.entry_id for one in group]) == {"g0", "g1", "g2", "g3"}
    await client.config_set("maxmemory", 0)
    outcomes = (await queue.offer_group(group)).outcomes
    assert outcomes == (Offered.HANDED, Offered.HANDED, Offered.QUEUED, Offered.QUEUED)
    await client.aclose()
