"""The waiting queue of a simulated trace: the rule that serves, with one driver, and with its clock as an argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from admission.events import Want
from admission.keys import WANT_LEASE_US
from admission.memory_queue import MemoryQueue
from admission.queue import Asked, Claim, Entry, Offered, QueueBounds
from admission.standing import Standing, WaitingOrderName, standing
from admission.trace_csv import Arrival

DRIVER = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """What became of an offer, how many stand better, and how many requests wait now."""

    outcome: Offered
    standing: Standing
    ahead: int
    num_waiting: int


class TraceQueue:
    """Times are microseconds and must not go back from call to call. Bounds that are None are out of reach."""

    def __init__(
        self,
        *,
        order: WaitingOrderName,
        max_requests: int | None,
        max_tokens: int | None,
        max_passes: int,
        num_requests: int,
    ) -> None:
        bound = num_requests if max_requests is None else max_requests
        self._queue = MemoryQueue(QueueBounds(max_requests=bound, max_tokens=max_tokens, max_passes=max_passes))
        self._order = order
        self._spoke_us = 0

    def offer(self, arrival: Arrival, tokens: int) -> OfferAnswer:
        """Hand the request to the driver, queue it, or refuse it, at the time of its arrival."""
        stands = standing(self._order, cls=arrival.cls, tenant=arrival.tenant, tokens=tokens, deadline_in_us=None)
        entry = Entry(
            entry_id=arrival.request_id,
            class_name=arrival.cls.name,
            rank=arrival.cls.rank,
            standing=stands,
            tokens=tokens,
            payload=b"",
            tenant=arrival.tenant,
        )
        result = self._queue.offer(entry, arrival.arrival_us)
        return OfferAnswer(
            outcome=result.outcome, standing=stands, ahead=result.position, num_waiting=result.waiting_requests
        )

    def claim(self, want: Want, now_us: int) -> tuple[Claim, ...]:
        """What the driver gets of what it wants. The rest of its want stands, for offers to come."""
        self._spoke_us = now_us
        asked = Asked(slots=want.slots, kv_tokens=want.kv_tokens, weakest=want.weakest)
        return self._queue.claim(DRIVER, asked, now_us)

    def keep_want(self, now_us: int) -> tuple[Claim, ...]:
        """What was handed over, if the driver has to speak up to keep its want standing.

        A live driver does so twice within the lease, however long its worker computes or idles.
        """
        if now_us - self._spoke_us < WANT_LEASE_US // 2:
            return ()
        self._spoke_us = now_us
        return self._queue.next_handed(DRIVER, now_us)

    def give_back(self, request_ids: Iterable[str], now_us: int) -> None:
        """These were preempted for memory. The driver's want ends with it: claim anew."""
        self._queue.give_back(DRIVER, request_ids, now_us)

    def settle(self, request_ids: Iterable[str], now_us: int) -> None:
        self._queue.settle(DRIVER, request_ids, now_us)

    def num_waiting(self) -> int:
        return self._queue.stats().requests
