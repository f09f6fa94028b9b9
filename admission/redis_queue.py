"""The waiting queue in Redis: one per model, shared by all gateways, each act one atomic script.

Every act raises ``StoreUnavailable`` within about a second when Redis is frozen or gone. Its outcome is then unknown,
and every act may be repeated: entries are known by id.

Nothing is lost between Redis and a driver. What a driver is given stays *handed* until its next call says that it was
received; a reply that got lost on the way is given again. Two calls of one driver never overlap in Redis, so nothing is
given twice. What a call returned counts as received.

A driver may die at any moment. Its standing want is met only for a few seconds after its last call (``WANT_LEASE_US``),
and any gateway's ``reap`` finds out that it fell silent and puts back what it never received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgpack
import redis.asyncio

from admission.heartbeats import Heartbeats
from admission.keys import WANT_LEASE_US, QueueKeys
from admission.queue import (
    NO_CLASS_RULE,
    Asked,
    Claim,
    ClassRule,
    Entry,
    OfferResult,
    QueueBounds,
    QueueObserver,
    QueueStats,
    Withdrawal,
    check_group,
)
from admission.redis_client import CALL_TIMEOUT_S, MAX_CONNECTIONS, blocking_twin, bounded
from admission.scripts import QueueScripts
from admission.turns import Turns

_BLOCK_S = WANT_LEASE_US / 2 / 1_000_000  # a driver that waits speaks twice within the lease of its want

_MIN_BLOCK_S = 0.01  # Redis 6.2 rounds less than a millisecond down to "for ever"

DRIVER_LEASE_S = 10.0
"""A driver speaks every ``_BLOCK_S`` or so; four times that in silence, and it is dead or as good as dead."""

REAP_GAP_S = 4.0
"""Call ``reap`` more often than this, every second say: a longer pause starts all leases anew."""

OFFERS_AT_ONCE = MAX_CONNECTIONS * 3 // 4
"""Of one gateway: the other connections are for acts that do not come in storms."""

_CLASS_FIELD = "class:"
_CLASS_TOKENS_FIELD = "class_tokens:"


@dataclass(slots=True)
class _Mailbox:
    """What this process knows of a driver's deliveries: ``received`` is told to Redis with the next call."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    received: tuple[str, ...] = ()


class RedisQueue:
    """One model's queue. ``clock_us`` is the store's time, moved by tests; None: Redis's own.

    ``offers`` are the turns that offers take, which queues on one client share; None: this queue has its own.
    ``observer`` is told of the acts of this process.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        model: str,
        bounds: QueueBounds,
        offers: Turns | None = None,
        driver_lease_s: float = DRIVER_LEASE_S,
        observer: QueueObserver | None = None,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._client = client
        self._waiting_client = blocking_twin(client)
        self._bounds = bounds
        self._keys = QueueKeys.of(model)
        self._scripts = QueueScripts(client, keys=self._keys, bounds=bounds, clock_us=clock_us, observer=observer)
        self._offers = offers or Turns(OFFERS_AT_ONCE)
        self._mailboxes: dict[str, _Mailbox] = {}
        self._heartbeats = Heartbeats(lease_s=driver_lease_s, max_gap_s=REAP_GAP_S)

    async def aclose(self) -> None:
        """Close the connections on which drivers wait. The client given at the start stays open: it is its owner's."""
        await self._waiting_client.aclose()

    # --- for origins --------------------------------------------------------------------------------------------------

    async def offer(self, entry: Entry, rule: ClassRule = NO_CLASS_RULE) -> OfferResult:
        """Hand ``entry`` to a standing want, or queue it, shedding others if need be, or say which bound is full."""
        return await self.offer_group((entry,), rule)

    async def offer_group(self, entries: Sequence[Entry], rule: ClassRule = NO_CLASS_RULE) -> OfferResult:
        """As ``offer``, for all of ``entries`` or none. Raises ``ValueError`` when they are no group."""
        check_group(entries)
        async with self._offers.turn("offer"), bounded("offer"):
            return await self._scripts.offer(entries, self._bounds, rule)

    async def offer_past_bounds(self, entry: Entry, rule: ClassRule = NO_CLASS_RULE) -> OfferResult:
        """As ``offer`` for what had started and was lost (a forced return): past the bounds, and never shed."""
        async with bounded("offer past bounds"):
            return await self._scripts.offer((entry,), None, rule.past_bounds())

    async def withdraw(self, entry_id: str) -> Withdrawal:
        """Take an entry out. One that a driver has stays with it, but never goes back into a line."""
        async with bounded("withdraw"):
            return await self._scripts.withdraw(entry_id)

    async def unknown(self, entry_ids: Sequence[str]) -> set[str]:
        """Those of the ids that are no entry now: never offered, ended, or lost with the store's data."""
        if not entry_ids:
            return set()
        async with bounded("know entries"):
            found = await cast("Awaitable[list[bytes | None]]", self._client.hmget(self._keys.entries, list(entry_ids)))
        return {entry_id for entry_id, entry in zip(entry_ids, found, strict=True) if entry is None}

    async def lost(self, entry_ids: Sequence[str]) -> set[str]:
        """Those of the ids that a driver held when it fell silent, lately."""
        if not entry_ids:
            return set()
        async with bounded("lost entries"):
            marks = await self._client.mget([self._keys.mark + entry_id for entry_id in entry_ids])
        pairs = zip(entry_ids, cast("list[bytes | None]", marks), strict=True)
        return {entry_id for entry_id, mark in pairs if mark is not None and msgpack.unpackb(mark)["ending"] == "lost"}

    async def stats(self) -> QueueStats:
        async with bounded("stats"):
            totals = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.totals))
        counts = {name.decode(): int(number) for name, number in totals.items()}
        names = sorted(
            field.removeprefix(_CLASS_FIELD)
            for field, number in counts.items()
            if field.startswith(_CLASS_FIELD) and number
        )
        by_class = [(name, counts[_CLASS_FIELD + name], counts.get(_CLASS_TOKENS_FIELD + name, 0)) for name in names]
        return QueueStats(requests=counts.get("requests", 0), tokens=counts.get("tokens", 0), by_class=tuple(by_class))

    # --- for drivers --------------------------------------------------------------------------------------------------

    async def claim(self, driver_id: str, asked: Asked | Callable[[], Asked]) -> tuple[Claim, ...]:
        """The best entries for ``asked``; the rest of it stands as the driver's want until its next claim.

        A function is called once this driver's other calls are through, so that it knows of all that they brought.
        """
        ask = asked if callable(asked) else lambda: asked
        return await self._receive(driver_id, "claim", lambda got: self._scripts.claim(driver_id, ask(), got))

    async def next_handed(self, driver_id: str, timeout_s: float) -> tuple[Claim, ...]:
        """Wait until offers met the standing want.

        Returns nothing after ``timeout_s``, or when the driver should claim again: a better entry came for its weakest
        sequence, or the lines changed in its favour.
        """
        deadline = time.monotonic() + timeout_s
        woken = False
        while True:
            claims = await self._receive(driver_id, "collect", lambda got: self._scripts.collect(driver_id, got))
            left_s = deadline - time.monotonic()
            if claims or woken or left_s <= 0:
                return claims
            woken = await self._wait_for_token(driver_id, max(_MIN_BLOCK_S, min(left_s, _BLOCK_S)))

    async def settle(self, driver_id: str, entry_ids: Sequence[str]) -> None:
        """These sequences of the driver have ended, in whatever way."""
        async with bounded("settle"):
            await self._scripts.settle(driver_id, entry_ids)

    async def give_back(self, driver_id: str, entry_ids: Sequence[str]) -> None:
        """The driver had to pause these. They wait for it, with their old scores, past the bounds if need be."""
        async with bounded("give back"):
            await self._scripts.give_back(driver_id, entry_ids)

    async def forget_driver(self, driver_id: str) -> None:
        """The driver leaves. What it received is dropped; what it did not, and what it had paused, waits for others."""
        mailbox = self._mailbox(driver_id)
        async with bounded("forget driver"), mailbox.lock:
            await self._scripts.forget_driver(driver_id, mailbox.received)
            mailbox.received = ()

    # --- for every gateway --------------------------------------------------------------------------------------------

    async def reap(self) -> tuple[str, ...]:
        """Forget the drivers that fell silent, whoever's they were, and name them. Call it every second or so."""
        async with bounded("reap"):
            found = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.beats))
            beats = {driver.decode(): beat.decode() for driver, beat in found.items()}
            silent = self._heartbeats.observe(beats, time.monotonic())
            return tuple([name for name in silent if await self._scripts.forget_silent_driver(name, beats[name])])

    async def reconcile(self) -> bool:
        """Whether nothing was lost from the middle of the queue; else it has begun anew, and is empty."""
        async with bounded("reconcile"):
            return await self._scripts.reconcile()

    async def _receive(
        self, driver_id: str, act: str, call: Callable[[Sequence[str]], Awaitable[tuple[Claim, ...]]]
    ) -> tuple[Claim, ...]:
        mailbox = self._mailbox(driver_id)
        async with bounded(act), mailbox.lock:
            claims = await call(mailbox.received)
            mailbox.received = tuple(claim.entry.entry_id for claim in claims)
        return claims

    async def _wait_for_token(self, driver_id: str, timeout_s: float) -> bool:
        async with bounded("wait", timeout_s + CALL_TIMEOUT_S):
            return await self._waiting_client.blpop([self._keys.inbox_of(driver_id)], timeout_s) is not None

    def _mailbox(self, driver_id: str) -> _Mailbox:
        return self._mailboxes.setdefault(driver_id, _Mailbox())
