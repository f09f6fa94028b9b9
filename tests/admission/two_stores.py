"""The queue in memory and the queue in Redis, asked the same: a machine for Hypothesis, whose acts others may call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from admission.classes import SECOND_US, PriorityClass
from admission.events import Weakest
from admission.keys import WANT_LEASE_US, QueueKeys
from admission.memory_queue import MemoryQueue
from admission.queue import Asked, Claim, ClassRule, Entry, QueueBounds
from admission.redis_client import connect
from admission.redis_queue import RedisQueue
from admission.standing import WaitingOrderName, standing
from gateway.redis_server import RedisServer

T = TypeVar("T")

DRIVERS = ("g0/unix:/w0", "g1/tcp:127.0.0.1:7000")
CLASSES = tuple(
    PriorityClass(name=name, rank=rank, head_start_us=head_start_us, service_tier="")
    for rank, (name, head_start_us) in enumerate(
        (("interactive", 3 * SECOND_US), ("standard", SECOND_US), ("batch", 0))
    )
)
TENANTS = ("", "a", "b", "größe: 3")
WALL_US = 1_800_000_000 * SECOND_US  # as large as real times are, so that rounding would show
NUM_LONG_PAUSES = 15  # the marks of ended entries outlive them all

drivers = st.sampled_from(DRIVERS)
backwards = st.integers(0, 7)  # which of the last ones
rooms = st.none() | st.integers(0, 10)
Short = tuple[tuple[str, int], ...]
shortages = st.just(()) | st.lists(
    st.tuples(st.sampled_from([cls.name for cls in CLASSES]), st.integers(0, 2)),
    unique_by=lambda one: one[0],
    max_size=2,
).map(tuple)
models = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    """What one offer is made of."""

    cls: PriorityClass
    tenant: str
    tokens: int
    num_bytes: int
    deadline_in_us: int | None
    rule: ClassRule


rules = st.builds(
    ClassRule,
    max_requests=st.none() | st.integers(0, 3),
    max_tokens=st.none() | st.integers(4, 9),
    sheds=st.booleans(),
    may_be_shed=st.booleans(),
    preempts=st.booleans() | st.just(True),
)
offerings = st.builds(
    Offering,
    cls=st.sampled_from(CLASSES),
    tenant=st.sampled_from(TENANTS),
    tokens=st.integers(1, 5),
    num_bytes=st.integers(0, 3),
    deadline_in_us=st.none() | st.integers(0, 3 * SECOND_US),
    rule=st.just(ClassRule(sheds=True, may_be_shed=True)) | rules,
)


class Stores(RuleBasedStateMachine):
    """The same acts on both stores at the same times; results, totals and wake-ups are compared after each."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.client = connect(server.url)
        self.model = f"model-{next(models)}"
        self.now_us = WALL_US
        self.long_pauses = 0
        self.entries: list[Entry] = []
        self.rules: dict[str, ClassRule] = {}
        self.groups: list[tuple[Entry, ...]] = []
        self.has: dict[str, dict[str, Claim]] = {driver: {} for driver in DRIVERS}

    @initialize(
        max_requests=st.sampled_from((6, 4, 2, 1, 0)),
        max_tokens=st.none() | st.integers(8, 20),
        max_bytes=st.none() | st.integers(4, 12),
        max_passes=st.integers(0, 3),
        order=st.sampled_from(WaitingOrderName),
    )
    def open_queues(
        self,
        max_requests: int,
        max_tokens: int | None,
        max_bytes: int | None,
        max_passes: int,
        order: WaitingOrderName,
    ) -> None:
        bounds = QueueBounds(
            max_requests=max_requests, max_tokens=max_tokens, max_bytes=max_bytes, max_passes=max_passes
        )
        self.order = order
        self.memory = MemoryQueue(bounds)
        self.redis = RedisQueue(self.client, model=self.model, bounds=bounds, clock_us=lambda: self.now_us)

    def both(self, expected: T, act: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await act()

        assert self.runner.run(run()) == expected
        return expected

    @rule(pause_us=st.integers(0, SECOND_US))
    def time_passes(self, pause_us: int) -> None:
        self.now_us += pause_us

    @precondition(lambda self: self.long_pauses < NUM_LONG_PAUSES)
    @rule()
    def wants_expire(self) -> None:
        self.long_pauses += 1
        self.now_us += WANT_LEASE_US

    @rule(wanted=st.lists(offerings, min_size=1, max_size=4))
    def offer(self, wanted: list[Offering]) -> None:
        for one in wanted:
            self.offer_to_both(self.new_entry(one))

    @rule(wanted=offerings)
    def offer_past_bounds(self, wanted: Offering) -> None:
        entry = self.new_entry(wanted)
        self.both(
            self.memory.offer_past_bounds(entry, self.now_us, wanted.rule),
            lambda: self.redis.offer_past_bounds(entry, wanted.rule),
        )

    @rule(
        of=offerings, sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), past=st.sampled_from([None, 0, 1, 4])
    )
    def offer_group(self, of: Offering, sizes: list[int], past: int | None) -> None:
        """``sizes``: the tokens of each; ``past``: which of them is withdrawn before."""
        if past is not None:
            self.withdraw_from_both(f"e{len(self.entries) + past}")
        group = tuple([self.new_entry(replace(of, tokens=tokens)) for tokens in sizes])
        self.groups.append(group)
        self.offer_group_to_both(group)

    @precondition(lambda self: self.groups)
    @rule(back=backwards)
    def offer_group_again(self, back: int) -> None:
        self.offer_group_to_both(self.groups[-1 - back % len(self.groups)])

    def offer_group_to_both(self, group: tuple[Entry, ...]) -> None:
        rule, before = self.rules[group[0].entry_id], self.memory.stats().requests
        result = self.both(
            self.memory.offer_group(group, self.now_us, rule), lambda: self.redis.offer_group(group, rule)
        )
        if result.refusal is not None:
            assert set(result.outcomes) == {result.refusal}
            assert self.memory.stats().requests == before, "all or none"

    def new_entry(self, one: Offering) -> Entry:
        entry = Entry(
            entry_id=f"e{len(self.entries)}",
            class_name=one.cls.name,
            rank=one.cls.rank,
            standing=standing(
                self.order,
                cls=one.cls,
                tenant=one.tenant,
                tokens=one.tokens,
                deadline_in_us=one.deadline_in_us,
            ),
            tokens=one.tokens,
            payload=bytes(range(one.num_bytes)),
            tenant=one.tenant,
            origin=f"tcp:{one.tenant}",
        )
        self.rules[entry.entry_id] = one.rule
        self.entries.append(entry)
        return entry

    @precondition(lambda self: self.entries)
    @rule(back=backwards)
    def offer_again(self, back: int) -> None:
        self.offer_to_both(self.entries[-1 - back % len(self.entries)])

    def offer_to_both(self, entry: Entry) -> None:
        rule = self.rules[entry.entry_id]
        self.both(self.memory.offer(entry, self.now_us, rule), lambda: self.redis.offer(entry, rule))

    @rule(driver=drivers, slots=st.integers(1, 4), kv_tokens=rooms, short=shortages)
    def claim(self, driver: str, slots: int, kv_tokens: int | None, short: Short) -> None:
        self.claim_from_both(driver, Asked(slots=slots, kv_tokens=kv_tokens, short=short))

    @precondition(lambda self: any(self.has.values()))
    @rule(back=backwards, slots=st.integers(0, 2), kv_tokens=rooms, short=shortages)
    def claim_in_exchange(self, back: int, slots: int, kv_tokens: int | None, short: Short) -> None:
        driver, held = self.some_held(back)
        weakest = Weakest(sequence_id=held.entry.entry_id, rank=held.entry.rank, score=held.score)
        self.claim_from_both(driver, Asked(slots=slots, kv_tokens=kv_tokens, weakest=weakest, short=short))

    @rule(driver=drivers)
    def next_handed(self, driver: str) -> None:
        timeout_s = 5.0 if self.memory.is_woken(driver) else 0.0
        claims = self.both(
            self.memory.next_handed(driver, self.now_us), lambda: self.redis.next_handed(driver, timeout_s)
        )
        self.receive(driver, claims)

    @precondition(lambda self: self.entries)
    @rule(back=backwards)
    def withdraw(self, back: int) -> None:
        self.withdraw_from_both(self.entries[-1 - back % len(self.entries)].entry_id)

    @precondition(lambda self: len(self.entries) % 5 == 4)
    @rule()
    def withdraw_before_the_offer(self) -> None:
        self.withdraw_from_both(f"e{len(self.entries)}")

    def withdraw_from_both(self, entry_id: str) -> None:
        self.both(self.memory.withdraw(entry_id, self.now_us), lambda: self.redis.withdraw(entry_id))

    @precondition(lambda self: any(self.has.values()))
    @rule(back=backwards)
    def settle(self, back: int) -> None:
        driver, held = self.some_held(back)
        self.settle_in_both(driver, [held.entry.entry_id])

    @precondition(lambda self: any(self.has.values()))
    @rule(back=backwards)
    def give_back(self, back: int) -> None:
        driver, held = self.some_held(back)
        self.give_back_to_both(driver, [held.entry.entry_id])

    @precondition(lambda self: self.entries)
    @rule(driver=drivers, backs=st.lists(backwards, max_size=3), act=st.sampled_from(["settle", "give back"]))
    def act_on_any(self, driver: str, backs: list[int], act: str) -> None:
        """What another driver has, or what waits, must not care; what was never received may be named as well."""
        ids = [self.entries[-1 - back % len(self.entries)].entry_id for back in backs]
        if act == "settle":
            self.settle_in_both(driver, ids)
        else:
            self.give_back_to_both(driver, ids)

    def settle_in_both(self, driver: str, ids: list[str]) -> None:
        self.both(self.memory.settle(driver, ids, self.now_us), lambda: self.redis.settle(driver, ids))
        self.loses(driver, ids)

    def give_back_to_both(self, driver: str, ids: list[str]) -> None:
        self.both(self.memory.give_back(driver, ids, self.now_us), lambda: self.redis.give_back(driver, ids))
        self.loses(driver, ids)

    @precondition(lambda self: any(self.has.values()))
    @rule(back=backwards)
    def forget_driver(self, back: int) -> None:
        driver, _ = self.some_held(back)
        self.both(self.memory.forget_driver(driver, self.now_us), lambda: self.redis.forget_driver(driver))
        self.has[driver].clear()

    @invariant()
    def what_waits_is_the_same(self) -> None:
        if hasattr(self, "redis"):
            self.both(self.memory.stats(), self.redis.stats)

    @invariant()
    def the_same_drivers_are_woken(self) -> None:
        async def tokens(driver: str) -> int:
            return int(await self.client.llen(QueueKeys.of(self.model).inbox_of(driver)))

        if hasattr(self, "redis"):
            for driver in DRIVERS:
                assert self.runner.run(tokens(driver)) == self.memory.is_woken(driver), driver

    @invariant()
    def the_queue_in_redis_is_whole(self) -> None:
        if hasattr(self, "redis"):
            assert self.runner.run(self.redis.reconcile())

    def claim_from_both(self, driver: str, asked: Asked) -> None:
        claims = self.both(self.memory.claim(driver, asked, self.now_us), lambda: self.redis.claim(driver, asked))
        self.receive(driver, claims)

    def receive(self, driver: str, claims: tuple[Claim, ...]) -> None:
        for claim in claims:
            if claim.victim_id is not None:
                del self.has[driver][claim.victim_id]
            self.has[driver][claim.entry.entry_id] = claim

    def some_held(self, back: int) -> tuple[str, Claim]:
        """One of the sequences that drivers have, with its driver."""
        held = [(driver, claim) for driver, claims in self.has.items() for claim in claims.values()]
        return held[-1 - back % len(held)]

    def loses(self, driver: str, ids: list[str]) -> None:
        for entry_id in ids:
            self.has[driver].pop(entry_id, None)

    def teardown(self) -> None:
        async def close() -> None:
            await self.redis.aclose()
            await self.client.aclose()

        self.runner.run(close())
        self.runner.close()
