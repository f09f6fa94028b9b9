"""Cases of a Redis that keeps less than it was given: what is missing is found, and nothing is counted below zero."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields

import pytest
import redis.asyncio

from admission.classes import BATCH, INTERACTIVE, PriorityClass
from admission.keys import QueueKeys
from admission.queue import Asked, ClassRule, Entry, Offered, QueueBounds, QueueStats
from admission.redis_queue import RedisQueue
from admission.standing import HeadStart, Standing

DRIVER = "g0/w0"
KEYS = QueueKeys.of("m")
OF_DRIVER, OF_LANE = ("handed", "held", "paused", "inbox"), ("turns", "idle")
HARMLESS = {"sheddable", "wants", "beats", "inbox", "idle", "mark"}
"""Without these nothing that waits or runs is lost: drivers say again what they want, and that they live, and
what waits is served, although nobody can displace it any more."""


@pytest.fixture
async def queue(redis_client: redis.asyncio.Redis) -> AsyncIterator[RedisQueue]:
    queue = RedisQueue(redis_client, model="m", bounds=QueueBounds(max_requests=64))
    yield queue
    await queue.aclose()


def entry(entry_id: str, of: PriorityClass = BATCH) -> Entry:
    standing = Standing(scored_by=HeadStart(us=of.head_start_us), lane=of.name, account="tenant")
    return Entry(entry_id=entry_id, class_name=of.name, rank=of.rank, standing=standing, tokens=10, payload=b"p")


async def fill(queue: RedisQueue) -> None:
    """Something in every place that there is."""
    for number in range(4):
        await queue.offer(entry(f"started{number}"))
    await queue.claim(DRIVER, Asked(slots=3))
    await queue.claim(DRIVER, Asked(slots=0))
    await queue.give_back(DRIVER, ["started2"])
    await queue.offer(entry("waits", BATCH), ClassRule(may_be_shed=True))
    await queue.offer(entry("waits too", INTERACTIVE))
    await queue.settle(DRIVER, ["started1"])
    await queue.claim("g1/w1", Asked(slots=1))


async def every_key(client: redis.asyncio.Redis, name: str) -> list[str]:
    """The keys of one kind."""
    prefix = getattr(KEYS, name)
    if name in OF_DRIVER or name in OF_LANE or name == "mark":
        return [key.decode() async for key in client.scan_iter(match=prefix.replace("{", "\\{") + "*")]
    return [prefix]


@pytest.mark.parametrize("name", [field.name for field in fields(QueueKeys)])
async def test_a_queue_of_which_a_key_is_missing_begins_anew_or_goes_on(
    redis_client: redis.asyncio.Redis, queue: RedisQueue, name: str
) -> None:
    """G08: an evicted key would hold places in the queue for ever, or be paid back as a negative count."""
    await fill(queue)
    assert await queue.reconcile(), "nothing is missing yet"
    lost = await every_key(redis_client, name)
    had = await redis_client.delete(*lost) if lost else 0

    is_whole = await queue.reconcile()

    assert had or name in HARMLESS
    assert is_whole or name not in HARMLESS - {"beats"}
    assert is_whole or await queue.stats() == QueueStats(requests=0, tokens=0, by_class=())
    assert await queue.reconcile(), "once is enough"
    for driver in (DRIVER, "g1/w1"):
        await queue.claim(driver, Asked(slots=0))
        await queue.settle(driver, ["started0", "started1", "started2", "started3", "waits", "waits too"])
        await queue.forget_driver(driver)
    for entry_id in ("started0", "waits", "waits too"):
        await queue.withdraw(entry_id)
    assert (await queue.offer(entry("new"))).outcome in {Offered.QUEUED, Offered.HANDED}
    claims = await queue.claim(DRIVER, Asked(slots=64))
    assert [claim.entry.entry_id for claim in claims].count("new") == 1
    totals = await redis_client.hgetall(KEYS.totals)
    assert min(int(count) for name, count in totals.items()) >= 0
    assert (await queue.stats()).requests == 0
    assert await queue.reconcile()
