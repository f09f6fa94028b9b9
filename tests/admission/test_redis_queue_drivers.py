"""The queue in Redis when a driver falls silent, or leaves."""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio

from admission.classes import INTERACTIVE
from admission.keys import QueueKeys
from admission.queue import Asked, ClassRule, NoObserver, Offered, QueueBounds, Withdrawn
from admission.redis_queue import RedisQueue
from admission.scripts import QueueScripts
from gateway.redis_server import RedisServer
from tests.admission.queue_entries import BOUND, DRIVER, OTHER_DRIVER, Opener, entry, ids
from tests.support import wait_until


async def test_a_driver_that_fell_silent_is_forgotten_by_any_gateway(
    redis_server: RedisServer, queue: RedisQueue, open_queue: Opener
) -> None:
    """G09: what it never received goes on elsewhere; what it had is its origin's to offer again."""
    await queue.offer(entry("held"))
    await queue.claim(DRIVER, Asked(slots=2))
    await queue.claim(DRIVER, Asked(slots=1))
    await queue.offer(entry("handed"))
    gateway = open_queue(redis_server.url, driver_lease_s=0.05)
    reaped: list[str] = []

    async def reap() -> bool:
        reaped.extend(await gateway.reap())
        return bool(reaped)

    await wait_until(reap, "the silent driver is forgotten")
    assert reaped == [DRIVER]
    assert await queue.lost(["held", "handed", "never"]) == {"held"}
    assert ids(await queue.claim(OTHER_DRIVER, Asked(slots=5))) == ["handed"]
    assert (await queue.offer_past_bounds(entry("held again"))).outcome is Offered.HANDED


async def test_a_driver_that_speaks_in_the_last_moment_is_not_forgotten(
    redis_client: redis.asyncio.Redis, queue: RedisQueue
) -> None:
    """Between the look at its beat and the act it may have spoken; its work would be given to another while it runs."""
    keys = QueueKeys.of("m")
    await queue.offer(entry("e"))
    await queue.claim(DRIVER, Asked(slots=1))
    beat = await redis_client.hget(keys.beats, DRIVER)
    assert beat is not None
    await queue.claim(DRIVER, Asked(slots=1))
    assert not await QueueScripts(redis_client, keys=keys, bounds=QueueBounds(max_requests=BOUND)).forget_silent_driver(
        DRIVER, beat.decode()
    )
    assert (await queue.withdraw("e")).outcome is Withdrawn.CLAIMED


async def test_a_driver_that_leaves_gives_up_what_it_never_received_and_what_it_paused(queue: RedisQueue) -> None:
    """A gateway that stops must not take accepted requests with it."""
    for name in ("paused", "held"):
        await queue.offer(entry(name))
    await queue.claim(DRIVER, Asked(slots=2))
    await queue.give_back(DRIVER, ["paused"])
    await queue.forget_driver(DRIVER)
    assert ids(await queue.claim(OTHER_DRIVER, Asked(slots=5))) == ["paused"]
    assert (await queue.withdraw("held")).outcome is Withdrawn.UNKNOWN


async def test_an_observer_is_told_what_a_lost_driver_leaves(
    redis_client: redis.asyncio.Redis, queue: RedisQueue
) -> None:
    """With a number: else a log could not tell why what was given out waits again. A driver that lives is no news."""
    seen: list[tuple[str, tuple[str, ...]]] = []

    class Observer(NoObserver):
        def forgot(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
            assert act > 0
            seen.append((driver_id, tuple(entry_ids)))

    keys = QueueKeys.of("m")
    scripts = QueueScripts(redis_client, keys=keys, bounds=QueueBounds(max_requests=BOUND), observer=Observer())
    for name in ("held", "paused", "nobody's"):
        await queue.offer(entry(name))
    await queue.claim(DRIVER, Asked(slots=3))
    await queue.give_back(DRIVER, ["paused"])
    await queue.claim(DRIVER, Asked(slots=0))
    await queue.withdraw("nobody's")
    assert not await scripts.forget_silent_driver(DRIVER, "another beat")
    assert seen == []
    beat = await redis_client.hget(keys.beats, DRIVER)
    assert beat is not None
    assert await scripts.forget_silent_driver(DRIVER, beat.decode())
    assert seen == [(DRIVER, ("paused",))]


async def test_what_has_started_is_not_shed_after_its_driver_left(queue: RedisQueue) -> None:
    """It waits with all others then, but its client has tokens already."""
    for number in range(BOUND):
        await queue.offer(entry(f"e{number}"), ClassRule(may_be_shed=True))
    started = ids(await queue.claim(DRIVER, Asked(slots=BOUND)))
    await queue.give_back(DRIVER, started)
    await queue.forget_driver(DRIVER)
    assert (await queue.offer(entry("high", INTERACTIVE), ClassRule(sheds=True))).outcome is Offered.QUEUE_FULL
