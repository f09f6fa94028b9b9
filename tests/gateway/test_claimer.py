"""The claimer: what the scheduler wants is asked for when it changes, no more than that, and again after a silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from admission.events import Want, Weakest
from admission.queue import Asked, Claim
from gateway.claimer import Claimer
from tests.gateway.fake_queue import FakeQueue, claim_of
from tests.support import wait_until


class Setup:
    """A claimer over a fake queue, and what it took."""

    def __init__(self) -> None:
        self.queue = FakeQueue()
        self.taken: list[str] = []
        queue: Any = self.queue
        self.claimer = Claimer(driver_id="g/w", queue=queue, take=self._take)

    def _take(self, claims: Sequence[Claim]) -> None:
        self.taken += [claim.entry.entry_id for claim in claims]

    async def asked(self, count: int) -> list[Asked]:
        await wait_until(lambda: len(self.queue.asked) >= count, f"{count} claims")
        for _ in range(20):
            await asyncio.sleep(0)  # one too many would come now
        assert len(self.queue.asked) == count
        return self.queue.asked


@asynccontextmanager
async def running() -> AsyncIterator[Setup]:
    setup = Setup()
    task = asyncio.create_task(setup.claimer.run())
    yield setup
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_the_same_want_is_asked_for_once() -> None:
    """A step takes a millisecond; a claim for each would drown Redis."""
    async with running() as setup:
        for _ in range(10):
            setup.claimer.want(Want(slots=4, kv_tokens=1000))
        assert await setup.asked(1) == [Asked(slots=4, kv_tokens=1000)]
        setup.claimer.want(Want(slots=4, kv_tokens=900))
        assert len(await setup.asked(1)) == 1, "a little less room is no news"
        setup.claimer.want(Want(slots=4, kv_tokens=300))
        assert (await setup.asked(2))[1].kv_tokens == 300


async def test_what_was_claimed_is_no_longer_wanted() -> None:
    """The standing want is what is left; asking again with the old number would take too much."""
    async with running() as setup:
        setup.queue.to_claim.append((claim_of("a"), claim_of("b")))
        setup.claimer.want(Want(slots=4, kv_tokens=1000))
        await setup.asked(1)
        assert setup.taken == ["a", "b"]
        setup.claimer.want(Want(slots=2, kv_tokens=980))
        assert len(await setup.asked(1)) == 1
        setup.claimer.want(Want(slots=3, kv_tokens=980))
        assert (await setup.asked(2))[1].slots == 3


async def test_what_was_handed_over_counts_before_the_scheduler_has_said_so() -> None:
    """Between the handing and the next step the want is older than what came."""
    async with running() as setup:
        setup.claimer.want(Want(slots=4))
        await setup.asked(1)
        setup.queue.handed.put_nowait((claim_of("a"),))
        await wait_until(lambda: setup.taken == ["a"], "it is taken")
        setup.queue.handed.put_nowait(())  # a wake-up
        assert (await setup.asked(2))[1].slots == 3


async def test_a_wake_up_claims_again() -> None:
    """A better entry came for the weakest sequence: only a claim can exchange them."""
    async with running() as setup:
        weakest = Weakest(sequence_id="w", rank=2, score=5)
        setup.queue.to_claim.extend([(), (claim_of("better", victim_id="w"),)])
        setup.claimer.want(Want(slots=0, weakest=weakest))
        await setup.asked(1)
        setup.queue.handed.put_nowait(())
        await setup.asked(2)
        assert setup.taken == ["better"]


async def test_after_an_exchange_the_want_is_told_anew() -> None:
    """The exchange ended it in the store; taken for standing still, it would never be met."""
    async with running() as setup:
        weakest = Weakest(sequence_id="w", rank=2, score=5)
        setup.queue.to_claim.append((claim_of("better", victim_id="w"),))
        setup.claimer.want(Want(slots=3, kv_tokens=100, weakest=weakest))
        await setup.asked(1)
        setup.claimer.want(Want(slots=3, kv_tokens=100))
        assert (await setup.asked(2))[1] == Asked(slots=3, kv_tokens=100)


async def test_what_classes_are_short_of_is_asked_for_and_counted_down() -> None:
    """A shortage told twice would be served twice; one that grew must be told."""
    async with running() as setup:
        setup.queue.to_claim.append((claim_of("a"),))
        setup.claimer.want(Want(slots=3, short=(("standard", 2),)))
        assert (await setup.asked(1))[0].short == (("standard", 2),)
        setup.claimer.want(Want(slots=2, short=(("standard", 1),)))
        assert len(await setup.asked(1)) == 1
        setup.claimer.want(Want(slots=2, short=(("batch", 1),)))
        assert (await setup.asked(2))[1].short == (("batch", 1),)


async def test_more_memory_is_news_also_to_a_driver_without_slots_that_would_exchange() -> None:
    """A better entry may fit now in the weakest one's place."""
    async with running() as setup:
        weakest = Weakest(sequence_id="w", rank=2, score=5)
        setup.claimer.want(Want(slots=0, kv_tokens=100, weakest=weakest))
        await setup.asked(1)
        setup.claimer.want(Want(slots=0, kv_tokens=300, weakest=weakest))
        assert (await setup.asked(2))[1].kv_tokens == 300


async def test_after_the_store_was_away_the_want_is_told_again() -> None:
    """Redis may have come back empty."""
    async with running() as setup:
        setup.queue.is_away = True
        setup.claimer.want(Want(slots=1))
        await wait_until(lambda: setup.queue.attempts > 2, "it keeps asking")
        setup.queue.is_away = False
        await wait_until(lambda: setup.queue.asked == [Asked(slots=1)], "it has asked")


async def test_a_claimer_that_stops_asking_says_so() -> None:
    """Offers must not be handed to a driver that leaves."""
    async with running() as setup:
        setup.claimer.want(Want(slots=4))
        await setup.asked(1)
        setup.claimer.stop_asking()
        setup.claimer.want(Want(slots=4))
        assert (await setup.asked(2))[1] == Asked(slots=0)
