"""The queue in Redis under what a cluster does to it: storms, lost replies, dead drivers, a store out of memory.

That its acts follow the rule is ``test_queue_stores_agree``'s matter.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import redis.asyncio

from admission.classes import BATCH, INTERACTIVE, PriorityClass
from admission.events import Weakest
from admission.keys import QueueKeys
from admission.queue import (
    Asked,
    Claim,
    ClassRule,
    Entry,
    NoObserver,
    Offered,
    QueueBounds,
    QueueStats,
    StoreUnavailable,
    Withdrawal,
    Withdrawn,
)
from admission.redis_client import connect
from admission.redis_queue import RedisQueue
from admission.scripts import QueueScripts
from admission.standing import TEN_YEARS_US, FixedScore, HeadStart, Standing
from gateway.redis_server import RedisServer
from tests.admission.redis_proxy import RedisProxy
from tests.support import wait_until

DRIVER, OTHER_DRIVER = "g0/unix:/run/w0.sock", "g1/unix:/run/w1.sock"
BOUND = 8
NO_REPLY_S = 0.1  # long enough for a command to arrive and act
NOTHING_WAITS = QueueStats(requests=0, tokens=0, by_class=())

Opener = Callable[..., RedisQueue]


def entry(entry_id: str, of: PriorityClass = BATCH, tokens: int = 10) -> Entry:
    return Entry(
        entry_id=entry_id,
        class_name=of.name,
        rank=of.rank,
        standing=Standing(scored_by=HeadStart(us=of.head_start_us), lane=of.name),
        tokens=tokens,
        payload=f"payload of {entry_id}".encode(),
    )


def ids(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.entry.entry_id for claim in claims]


def weakest(claim: Claim) -> Weakest:
    return Weakest(sequence_id=claim.entry.entry_id, rank=claim.entry.rank, score=claim.score)


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


# --- lost replies -----------------------------------------------------------------------------------------------------


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


# --- drivers that die -------------------------------------------------------------------------------------------------


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
