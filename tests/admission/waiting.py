"""A queue in memory to offer to and to claim from, in the words of the tests that do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from admission.classes import BATCH, PriorityClass
from admission.events import Weakest
from admission.memory_queue import MemoryQueue
from admission.queue import NO_CLASS_RULE, Asked, Claim, ClassRule, Entry, Offered, OfferResult, QueueBounds
from admission.standing import WaitingOrderName, older, standing

DRIVER, OTHER = "driver", "other"


class Waiting:
    """A queue under one waiting order, with a clock that each offer moves."""

    def __init__(
        self,
        order: WaitingOrderName = WaitingOrderName.AGING,
        *,
        max_requests: int = 1_000,
        max_tokens: int | None = None,
        max_passes: int = 2,
    ) -> None:
        self.order = order
        bounds = QueueBounds(max_requests=max_requests, max_tokens=max_tokens, max_passes=max_passes)
        self.queue = MemoryQueue(bounds)
        self.now_us = 0

    def offer(self, name: str, cls: PriorityClass = BATCH, **about: Any) -> Offered:
        """What came of it; ``offered`` says more and has what may be said about the entry."""
        return self.offered(name, cls, **about).outcome

    def offer_again(self, name: str, cls: PriorityClass = BATCH, *, tenant: str = "") -> Offered:
        """What had started goes on as ``name``, older than all that waits, after what ran it was lost."""
        entry = self.entry(name, cls, tenant=tenant)
        aged = replace(entry, standing=older(entry.standing, self.now_us))
        return self.queue.offer_past_bounds(aged, self.now_us).outcome

    def offered(
        self, name: str, cls: PriorityClass = BATCH, *, rule: ClassRule = NO_CLASS_RULE, **about: Any
    ) -> OfferResult:
        return self.queue.offer(self.entry(name, cls, **about), self.now_us, rule)

    def offered_group(
        self, name: str, cls: PriorityClass = BATCH, *, tokens: tuple[int, ...], rule: ClassRule = NO_CLASS_RULE
    ) -> OfferResult:
        """A group of entries ``name.0``, ``name.1`` and so on, one for each of ``tokens``."""
        group = [self.entry(f"{name}.{number}", cls, tokens=size) for number, size in enumerate(tokens)]
        return self.queue.offer_group(group, self.now_us, rule)

    def entry(
        self,
        name: str,
        cls: PriorityClass = BATCH,
        *,
        tokens: int = 10,
        tenant: str = "",
        deadline_in_us: int | None = None,
    ) -> Entry:
        self.now_us += 1
        stands = standing(self.order, cls=cls, tenant=tenant, tokens=tokens, deadline_in_us=deadline_in_us)
        return Entry(
            entry_id=name,
            class_name=cls.name,
            rank=cls.rank,
            standing=stands,
            tokens=tokens,
            payload=b"",
            tenant=tenant,
            origin=f"tcp:{name}",
        )

    def claim(
        self, slots: int = 1, kv_tokens: int | None = None, *, weakest: Claim | None = None, driver: str = DRIVER
    ) -> tuple[Claim, ...]:
        told = (
            Weakest(sequence_id=weakest.entry.entry_id, rank=weakest.entry.rank, score=weakest.score)
            if weakest
            else None
        )
        return self.queue.claim(driver, Asked(slots=slots, kv_tokens=kv_tokens, weakest=told), self.now_us)

    def take(self, slots: int = 1, kv_tokens: int | None = None, *, driver: str = DRIVER) -> list[str]:
        return [claim.entry.entry_id for claim in self.claim(slots, kv_tokens, driver=driver)]

    def handed(self, driver: str = DRIVER) -> list[str]:
        return [claim.entry.entry_id for claim in self.queue.next_handed(driver, self.now_us)]
