"""The queue in Redis under what a cluster does to it: storms, wants that stand, offers and withdrawals that cross.

That its acts follow the rule is ``test_queue_stores_agree``'s matter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
import redis.asyncio

from admission.classes import INTERACTIVE
from admission.queue import Asked, Entry, Offered, Withdrawal, Withdrawn
from admission.redis_queue import RedisQueue
from admission.standing import TEN_YEARS_US, FixedScore, HeadStart, Standing
from gateway.redis_server import RedisServer
from tests.admission.queue_entries import BOUND, DRIVER, NOTHING_WAITS, OTHER_DRIVER, Opener, entry, ids, weakest


@pytest.mark.usefixtures("redis_client")
async def test_no_more_wait_than_the_bound_whoever_offers(redis_server: RedisServer, open_queue: Opener) -> None:
    """G01: the bound is the cluster's: several gateways in a storm may not overshoot it together."""
    gateways = [open_queue(redis_server.url) for _ in range(4)]
    seen = []

    async def watch(watcher: RedisQueue) -> None:
        while True:
            seen.append((await watcher.stats()).requests)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch(open_queue(redis_server.url)))
        results = await asyncio.gather(*(gateways[n % 4].offer(entry(f"e{n}")) for n in range(200)))
        watching.cancel()
    assert Counter(result.outcome for result in results) == {Offered.QUEUED: BOUND, Offered.QUEUE_FULL: 200 - BOUND}
    assert max(seen) <= BOUND


async def test_claims_of_many_drivers_share_the_queue_out_without_loss(queue: RedisQueue) -> None:
    """Each entry is given exactly once, whoever asks first."""
    for number in range(BOUND):
        await queue.offer(entry(f"e{number}"))
    given = await asyncio.gather(*(queue.claim(f"g{n}/w", Asked(slots=1)) for n in range(2 * BOUND)))
    assert sorted(entry_id for claims in given for entry_id in ids(claims)) == [f"e{n}" for n in range(BOUND)]
    assert await queue.stats() == NOTHING_WAITS


@pytest.mark.parametrize("scored_by", [HeadStart(us=7), HeadStart(us=-TEN_YEARS_US), FixedScore(score=-3)])
async def test_a_claim_carries_everything_that_was_offered(
    queue: RedisQueue, scored_by: HeadStart | FixedScore
) -> None:
    """The driver has nothing else to build the sequence from."""
    offered = Entry(
        entry_id="e",
        class_name="batch",
        rank=2,
        standing=Standing(scored_by=scored_by, lane="l:0", account="größe"),
        tokens=10,
        payload=bytes(range(256)),
        tenant="größe",
    )
    await queue.offer(offered)
    (claim,) = await queue.claim(DRIVER, Asked(slots=1))
    assert claim.entry == offered
    assert claim.score == offered.standing.score(claim.arrival_us)


async def test_an_offer_that_meets_a_standing_want_wakes_its_driver_and_never_waits(queue: RedisQueue) -> None:
    """A free slot is taken at once, also with a bound of zero waiting."""
    assert await queue.claim(DRIVER, Asked(slots=1)) == ()
    handed = asyncio.create_task(queue.next_handed(DRIVER, 5.0))
    result = await queue.offer(entry("e"))
    assert result.outcome is Offered.HANDED
    assert result.waiting_requests == 0
    assert ids(await handed) == ["e"]


async def test_a_claim_asks_for_what_is_wanted_once_it_knows_of_all_that_came(queue: RedisQueue) -> None:
    """A want that was right before the last delivery is one slot too many: an offer would be handed over in vain."""
    await queue.claim(DRIVER, Asked(slots=1))
    await queue.offer(entry("e"))
    arrived: list[str] = []

    async def collect() -> None:
        arrived.extend(ids(await queue.next_handed(DRIVER, 5.0)))

    collecting = asyncio.create_task(collect())
    await asyncio.sleep(0)  # its call goes first
    assert await queue.claim(DRIVER, lambda: Asked(slots=1 - len(arrived))) == ()
    await collecting
    assert (await queue.offer(entry("next"))).outcome is Offered.QUEUED


async def test_a_better_offer_wakes_the_driver_whose_weakest_it_may_displace(queue: RedisQueue) -> None:
    """Without the wake-up an interactive request would wait until some batch sequence ends."""
    await queue.offer(entry("low"))
    (low,) = await queue.claim(DRIVER, Asked(slots=1))
    asked = Asked(slots=0, weakest=weakest(low))
    assert await queue.claim(DRIVER, asked) == ()
    woken = asyncio.create_task(queue.next_handed(DRIVER, 60.0))
    await queue.offer(entry("high", INTERACTIVE))
    assert await asyncio.wait_for(woken, 5.0) == ()
    (high,) = await queue.claim(DRIVER, asked)
    assert (high.entry.entry_id, high.victim_id) == ("high", "low")
    assert (await queue.stats()).by_class == (("batch", 1, 10),)
    assert await queue.claim(OTHER_DRIVER, Asked(slots=1)) == ()  # the victim stays pinned to its driver
    assert ids(await queue.claim(DRIVER, Asked(slots=1))) == ["low"]


async def test_what_still_travels_to_a_driver_forbids_an_exchange(queue: RedisQueue) -> None:
    """The slot that the driver thinks of as its weakest's is already promised."""
    await queue.offer(entry("low"))
    (low,) = await queue.claim(DRIVER, Asked(slots=2))
    await queue.offer(entry("handed"))
    await queue.offer(entry("high", INTERACTIVE))
    (handed,) = await queue.claim(DRIVER, Asked(slots=0, weakest=weakest(low)))
    assert (handed.entry.entry_id, handed.victim_id) == ("handed", None)


@pytest.mark.usefixtures("redis_client")
async def test_a_withdrawal_that_frees_the_head_wakes_who_has_room_for_the_next(
    redis_server: RedisServer, open_queue: Opener
) -> None:
    """Nothing else would, where nothing may be passed over: no offer and no claim is due."""
    queue = open_queue(redis_server.url, max_passes=0)
    await queue.offer(entry("large", tokens=100))
    await queue.offer(entry("small", tokens=10))
    assert await queue.claim(DRIVER, Asked(slots=1, kv_tokens=50)) == ()
    woken = asyncio.create_task(queue.next_handed(DRIVER, 60.0))
    await queue.withdraw("large")
    assert await asyncio.wait_for(woken, 5.0) == ()
    assert ids(await queue.claim(DRIVER, Asked(slots=1, kv_tokens=50))) == ["small"]


async def test_waiting_for_nothing_ends_on_time(queue: RedisQueue) -> None:
    """A driver that waits for ever cannot be stopped; and Redis 6.2 takes a time-out near zero for none at all."""
    assert await asyncio.wait_for(queue.next_handed(DRIVER, 0.0), 5.0) == ()
    assert await asyncio.wait_for(queue.next_handed(DRIVER, 0.0004), 5.0) == ()


async def test_forced_returns_pass_the_bound_and_offers_wait_for_them(queue: RedisQueue) -> None:
    """What was accepted once is never thrown away; what comes new is refused until the queue is below its bound."""
    for number in range(3):
        await queue.offer(entry(f"started{number}"))
    started = ids(await queue.claim(DRIVER, Asked(slots=3)))
    for number in range(BOUND):
        await queue.offer(entry(f"e{number}"))
    await queue.give_back(DRIVER, started)
    await queue.give_back(DRIVER, started)
    assert (await queue.stats()).requests == BOUND + 3
    assert ids(await queue.claim(DRIVER, Asked(slots=3))) == started
    assert (await queue.offer(entry("new"))).outcome is Offered.QUEUE_FULL
    await queue.claim(DRIVER, Asked(slots=1))
    assert (await queue.offer(entry("new"))).outcome is Offered.QUEUED


async def test_withdrawing_says_where_the_entry_was(queue: RedisQueue) -> None:
    """The origin must know whether to tell a driver."""
    assert await queue.withdraw("e") == Withdrawal(outcome=Withdrawn.UNKNOWN)
    await queue.offer(entry("waits"))
    assert await queue.withdraw("waits") == Withdrawal(outcome=Withdrawn.WITHDRAWN)
    assert await queue.withdraw("waits") == Withdrawal(outcome=Withdrawn.WITHDRAWN)
    await queue.offer(entry("paused"))
    await queue.claim(DRIVER, Asked(slots=1))
    await queue.give_back(DRIVER, ["paused"])
    assert await queue.withdraw("paused") == Withdrawal(outcome=Withdrawn.WITHDRAWN, driver_id=DRIVER)
    await queue.offer(entry("runs"))
    await queue.claim(DRIVER, Asked(slots=1))
    assert await queue.withdraw("runs") == Withdrawal(outcome=Withdrawn.CLAIMED, driver_id=DRIVER)
    await queue.give_back(DRIVER, ["runs"])
    assert await queue.stats() == NOTHING_WAITS  # nobody wants it: it does not go back into a line


async def test_an_offer_overtaken_by_its_withdrawal_changes_nothing(queue: RedisQueue) -> None:
    """A cancelled offer may still be on its way; executed afterwards it would wait for nobody."""
    await queue.withdraw("late")
    assert (await queue.offer(entry("late"))).outcome is Offered.WITHDRAWN
    assert await queue.stats() == NOTHING_WAITS


async def test_an_offer_repeated_at_any_time_answers_the_same(queue: RedisQueue) -> None:
    """Whoever lost the reply asks again, and must not be served twice."""
    first = await queue.offer(entry("e"))
    assert await queue.offer(entry("e")) == first
    await queue.claim(DRIVER, Asked(slots=1))
    assert (await queue.offer(entry("e"))).outcome is first.outcome
    await queue.settle(DRIVER, ["e"])
    assert (await queue.offer(entry("e"))).outcome is first.outcome
    assert await queue.stats() == NOTHING_WAITS
    assert await queue.claim(DRIVER, Asked(slots=1)) == ()


async def test_settling_leaves_only_short_lived_marks(redis_client: redis.asyncio.Redis, queue: RedisQueue) -> None:
    """Ended work must not pile up in Redis."""
    for number in range(5):
        await queue.offer(entry(f"e{number}"))
    await queue.settle(DRIVER, ids(await queue.claim(DRIVER, Asked(slots=5))))
    await queue.claim(DRIVER, Asked(slots=0))
    left = sorted(key.decode().removeprefix("sg:{m}:") for key in await redis_client.keys())
    assert left == ["beats", "lanes", *(f"mark:e{number}" for number in range(5)), "totals"]
    assert 0 < await redis_client.ttl("sg:{m}:mark:e0") <= 120


async def test_negative_scores_are_kept_in_order(queue: RedisQueue) -> None:
    """Lines are sorted by name, where a sign would turn the order round."""
    for score in (5, -3, 0, -20, 18):
        standing = Standing(scored_by=FixedScore(score=score), lane="batch")
        await queue.offer(replace(entry(f"at {score}"), standing=standing))
    assert ids(await queue.claim(DRIVER, Asked(slots=5))) == ["at -20", "at -3", "at 0", "at 5", "at 18"]


async def test_what_tenants_were_given_is_forgotten_once_it_makes_no_difference(
    redis_client: redis.asyncio.Redis, queue: RedisQueue
) -> None:
    """Tenants come and go by the thousand; their counters must not pile up in Redis."""
    left = []
    for number in range(40):
        for tenant in (f"a{number}", f"b{number}", f"c{number}"):
            standing = Standing(scored_by=HeadStart(us=0), lane="batch", account=tenant)
            await queue.offer(replace(entry(tenant), standing=standing))
        await queue.settle(DRIVER, ids(await queue.claim(DRIVER, Asked(slots=3))))
        left.append(await redis_client.zcard("sg:{m}:idle:batch"))
    assert max(left) <= 6
    assert await redis_client.exists("sg:{m}:turns:batch", "sg:{m}:lines", "sg:{m}:waiting") == 0


@pytest.mark.usefixtures("redis_client")
async def test_groups_of_many_gateways_are_never_taken_in_part(redis_server: RedisServer, open_queue: Opener) -> None:
    """In a storm some fit and others do not; the bound holds for all of them together."""
    gateways = [open_queue(redis_server.url) for _ in range(4)]
    groups = [[entry(f"g{n}.{place}") for place in range(3)] for n in range(40)]
    results = await asyncio.gather(*(gateways[n % 4].offer_group(group) for n, group in enumerate(groups)))
    taken = [group for group, result in zip(groups, results, strict=True) if result.refusal is None]
    assert len(taken) == BOUND // 3
    claims = await gateways[0].claim(DRIVER, Asked(slots=2 * BOUND))
    assert sorted(ids(claims)) == sorted(one.entry_id for group in taken for one in group)
