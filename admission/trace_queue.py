"""The waiting queue of a simulated trace: the rule that serves, with its clock as an argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from admission.events import Want
from admission.keys import WANT_LEASE_US
from admission.memory_queue import MemoryQueue
from admission.queue import (
    NO_CLASS_RULE,
    Asked,
    Claim,
    ClassRule,
    Entry,
    Offered,
    QueueBounds,
    Withdrawal,
)
from admission.standing import Standing, WaitingOrderName, standing
from admission.trace_csv import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """What became of an offer, how many stand better, what waits now, and who had to go for it."""

    outcome: Offered
    standing: Standing
    ahead: int
    num_waiting: int
    waiting_tokens: int
    shed: tuple[str, ...] = ()


class TraceQueue:
    """Times are microseconds and must not go back from call to call. ``rules``: what is told of a class, by name."""

    def __init__(self, *, order: WaitingOrderName, bounds: QueueBounds, rules: Mapping[str, ClassRule]) -> None:
        self._queue = MemoryQueue(bounds)
        self._order = order
        self._rules = rules
        self._spoke_us: dict[str, int] = {}

    def offer(self, arrival: Arrival, tokens: int) -> OfferAnswer:
        """Hand the request to a driver, queue it, or refuse it, at the time of its arrival."""
        deadline_us = None if arrival.known is None else arrival.known.deadline_us
        stands = standing(
            self._order,
            cls=arrival.cls,
            tenant=arrival.tenant,
            tokens=tokens,
            deadline_in_us=None if deadline_us is None else max(0, deadline_us - arrival.arrival_us),
        )
        entry = Entry(
            entry_id=arrival.request_id,
            class_name=arrival.cls.name,
            rank=arrival.cls.rank,
            standing=stands,
            tokens=tokens,
            payload=b"",
            tenant=arrival.tenant,
        )
        result = self._queue.offer(entry, arrival.arrival_us, self._rules.get(arrival.cls.name, NO_CLASS_RULE))
        return OfferAnswer(
            outcome=result.outcome,
            standing=stands,
            ahead=result.position,
            num_waiting=result.waiting_requests,
            waiting_tokens=result.waiting_tokens,
            shed=tuple([shed.entry_id for shed in result.shed]),
        )

    def withdraw(self, request_id: str, now_us: int) -> Withdrawal:
        return self._queue.withdraw(request_id, now_us)

    def claim(self, driver: str, want: Want, now_us: int) -> tuple[Claim, ...]:
        """What the driver gets of what it wants. The rest of its want stands, for offers to come."""
        self._spoke_us[driver] = now_us
        asked = Asked(slots=want.slots, kv_tokens=want.kv_tokens, weakest=want.weakest, short=want.short)
        return self._queue.claim(driver, asked, now_us)

    def keep_want(self, driver: str, now_us: int) -> tuple[Claim, ...]:
        """What was handed over, if the driver has to speak up to keep its want standing.

        A live driver does so twice within the lease, however long its worker computes or idles.
        """
        if now_us - self._spoke_us.get(driver, 0) < WANT_LEASE_US // 2:
            return ()
        self._spoke_us[driver] = now_us
        return self._queue.next_handed(driver, now_us)

    def is_woken(self, driver: str) -> bool:
        """Whether a claim would give the driver something."""
        return self._queue.is_woken(driver)

    def give_back(self, driver: str, request_ids: Iterable[str], now_us: int) -> None:
        """These were preempted for memory. The driver's want ends with it: claim anew."""
        self._queue.give_back(driver, request_ids, now_us)

    def settle(self, driver: str, request_ids: Iterable[str], now_us: int) -> None:
        self._queue.settle(driver, request_ids, now_us)

    def num_waiting(self) -> int:
        return self._queue.stats().requests
