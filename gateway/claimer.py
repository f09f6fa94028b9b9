"""Takes sequences from the store for one driver, beside the step path, which never waits for Redis.

The scheduler says after each step what it wants. When that is no longer what the store has as this driver's standing
want, the claimer claims anew. Offers that meet the standing want are waited for on another connection. When the store
is away the driver goes on with what it has, and asks again until the store is back.

Free KV room changes with every iteration; asking anew each time would cost a claim per iteration for nothing. So room
counts as changed when it has doubled or halved, and whenever the number of free slots has changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from admission.events import Want
from admission.queue import Asked, Claim, StoreUnavailable
from admission.redis_queue import RedisQueue
from gateway.backoff import Backoff

HANDED_WAIT_S = 2.0
"""Longest wait for an offer to meet the standing want; then the claim is renewed, whatever Redis may have forgotten."""

NOTHING = Want(slots=0)

_log = structlog.get_logger(__name__)


class Claimer:
    """``take`` gets every claim, in the event loop, and must not block. ``run`` owns the waiting."""

    def __init__(self, *, driver_id: str, queue: RedisQueue, take: Callable[[Sequence[Claim]], None]) -> None:
        self._driver_id = driver_id
        self._queue = queue
        self._take = take
        self._latest = NOTHING
        self._standing: Want | None = None
        self._untold: list[Claim] = []
        self._asked = NOTHING
        self._is_closed = False
        self._due = asyncio.Event()

    def want(self, want: Want) -> None:
        """What the scheduler wants after this step."""
        self._latest = NOTHING if self._is_closed else want
        self._untold.clear()
        if self._standing is None or _differs(self._latest, self._standing):
            self._due.set()

    def stop_asking(self) -> None:
        """Take nothing more, save what was handed over already."""
        self._is_closed = True
        self.want(NOTHING)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim_when_due())
            group.create_task(self._take_handed())

    async def _claim_when_due(self) -> None:
        backoff = Backoff()
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                claims = await self._queue.claim(self._driver_id, self._ask)
            except StoreUnavailable as error:
                _log.warning("claim failed", driver=self._driver_id, error=str(error))
                self._due.set()
                await backoff.pause()
                continue
            backoff.reset()
            self._standing = _less(self._asked, claims)
            if claims:
                self._pass_on(claims)
            elif not self._untold:
                self.want(self._latest)

    async def _take_handed(self) -> None:
        backoff = Backoff()
        while True:
            try:
                claims = await self._queue.next_handed(self._driver_id, HANDED_WAIT_S)
            except StoreUnavailable:
                self._standing = None
                await backoff.pause()
                continue
            backoff.reset()
            if not claims:
                self._due.set()
                continue
            if self._standing is not None:
                self._standing = _less(self._standing, claims)
            self._pass_on(claims)

    def _ask(self) -> Asked:
        """The latest want, less what has come since."""
        asked = self._asked = _less(self._latest, self._untold)
        return Asked(slots=asked.slots, kv_tokens=asked.kv_tokens, weakest=asked.weakest, short=asked.short)

    def _pass_on(self, claims: Sequence[Claim]) -> None:
        """The latest want knows nothing of these; the step that takes them says the next."""
        self._untold.extend(claims)
        self._take(claims)


def _less(want: Want, claims: Sequence[Claim]) -> Want:
    """What is left of ``want`` after ``claims`` met a part of it. An exchange ends it, in the store as well."""
    if not claims:
        return want
    if any(claim.victim_id is not None for claim in claims):
        return NOTHING
    kv_tokens = want.kv_tokens
    if kv_tokens is not None:
        kv_tokens = max(0, kv_tokens - sum(claim.entry.tokens for claim in claims))
    got = Counter(claim.entry.class_name for claim in claims)
    short = tuple((name, slots - got[name]) for name, slots in want.short if slots > got[name])
    return Want(slots=max(0, want.slots - len(claims)), kv_tokens=kv_tokens, weakest=want.weakest, short=short)


def _differs(latest: Want, standing: Want) -> bool:
    if (latest.slots, latest.weakest, latest.short) != (standing.slots, standing.weakest, standing.short):
        return True
    if latest.kv_tokens is None or standing.kv_tokens is None:
        return latest.kv_tokens is not standing.kv_tokens
    if latest.slots == 0 and latest.weakest is None:
        return False
    return latest.kv_tokens >= 2 * standing.kv_tokens or 2 * latest.kv_tokens <= standing.kv_tokens
