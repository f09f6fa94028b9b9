"""Cases of clocks that jump, as the store meets them: nobody goes ahead, and nothing ends early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import redis.asyncio

from admission.classes import BATCH, INTERACTIVE, PriorityClass
from admission.queue import Asked, Claim, Entry, Offered, QueueBounds
from admission.redis_queue import RedisQueue
from admission.standing import HeadStart, Standing

DRIVER = "g0/w0"
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US


@dataclass
class WallClock:
    """The clock of Redis, as its operators set it."""

    now_us: int = 1_700_000_000 * SECOND_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
async def queue(redis_client: redis.asyncio.Redis, wall: WallClock) -> AsyncIterator[RedisQueue]:
    queue = RedisQueue(redis_client, model="m", bounds=QueueBounds(max_requests=64), clock_us=wall)
    yield queue
    await queue.aclose()


def entry(entry_id: str, of: PriorityClass = BATCH) -> Entry:
    standing = Standing(scored_by=HeadStart(us=of.head_start_us), lane=of.name)
    return Entry(entry_id=entry_id, class_name=of.name, rank=of.rank, standing=standing, tokens=10, payload=b"")


def ids(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.entry.entry_id for claim in claims]


@pytest.mark.parametrize("jump_us", [-HOUR_US, -2 * SECOND_US, 2 * SECOND_US, HOUR_US])
async def test_who_came_first_goes_first_although_the_clock_jumps(
    queue: RedisQueue, wall: WallClock, jump_us: int
) -> None:
    """G11: a clock set back must not let newcomers pass for as long as it was wrong, nor one set forward."""
    for number in range(6):
        await queue.offer(entry(f"e{number}"))
        wall.now_us += jump_us * (-1) ** (number // 2) + SECOND_US
    assert ids(await queue.claim(DRIVER, Asked(slots=6))) == [f"e{number}" for number in range(6)]


async def test_waiting_goes_on_to_count_after_the_clock_was_set_back(queue: RedisQueue, wall: WallClock) -> None:
    """G11: else no lesser class would age until the clock is where it was: the wait bound would be an hour longer."""
    await queue.offer(entry("before"))
    wall.now_us -= HOUR_US
    await queue.offer(entry("batch"))
    wall.now_us += INTERACTIVE.head_start_us + SECOND_US
    await queue.offer(entry("interactive", INTERACTIVE))
    assert ids(await queue.claim(DRIVER, Asked(slots=3))) == ["before", "batch", "interactive"]


@pytest.mark.parametrize("jump_us", [-HOUR_US, HOUR_US])
async def test_what_waits_is_found_whatever_the_clock_does(queue: RedisQueue, wall: WallClock, jump_us: int) -> None:
    """G11: a want may end early when the clock jumps; then the offer waits, and the driver's next claim finds it."""
    assert await queue.claim(DRIVER, Asked(slots=1)) == ()
    wall.now_us += jump_us
    outcome = (await queue.offer(entry("e"))).outcome
    assert outcome in {Offered.HANDED, Offered.QUEUED}
    assert ids(await queue.claim(DRIVER, Asked(slots=1))) == ["e"]
    assert (await queue.stats()).requests == 0
