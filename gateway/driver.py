"""The driver: one loop per worker that this gateway holds, from a link's welcome to its loss.

Everything that happens (claims, cancels, reports, a timer) becomes an event and stirs the loop. Each turn gives the
events to the scheduler, sends the plans that it makes (up to two are with the worker), then brings the tokens that came
to their origins. A turn never waits: the store is asked by the claimer and told by ``StoreActs``, origins are reached
through the relay, and the worker's socket is buffered.

What the driver adds to the scheduler is the tokens (``SequenceRecord``) and the custody of each sequence:

    claimed ──▶ HELD ──(exchanged, or paused: given back)──▶ RETURNED ──(claimed again)──▶ HELD
                 └──(ended)──▶ settled                          └──(ended, cancelled)──▶ withdrawn

A returned sequence stays pinned to this driver, which keeps its tokens; in a plan that was in flight when it was
displaced it may still give a token, and that token counts. When the link is lost everything held ends with an error at
its origin and is settled; what was returned waits in the store for whoever claims it next, and starts from its prompt:
its origin drops what it has already.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from admission.events import (
    Cancelled,
    Claimed,
    EndReason,
    Event,
    Exchanged,
    Finished,
    FinishReason,
    Plan,
    Reported,
    Step,
)
from admission.queue import Claim
from admission.redis_queue import RedisQueue
from admission.scheduler import ReportError, Scheduler
from gateway.claimer import Claimer
from gateway.clock import Clock
from gateway.errors import Reason
from gateway.frames import LinkLost
from gateway.links import WorkerLink
from gateway.metrics import Metrics
from gateway.relay import Relay
from gateway.sequence_records import Custody, SequenceRecord, plan_message, spec_of
from gateway.store_acts import StoreActs
from workers.wire import Delivery, Hello, Job, ReportMessage, WireError, decode

MOST_EARLY_CANCELS = 4096
"""Cancels that overtook their claim, kept until the claim comes. An origin cancels each sequence once."""

_log = structlog.get_logger(__name__)

_REASONS = {
    EndReason.FAILED: Reason.INTERNAL_ERROR,
    EndReason.DEADLINE: Reason.DEADLINE_EXCEEDED,
    EndReason.WORKER_LOST: Reason.WORKER_LOST,
}


@dataclass(frozen=True, slots=True)
class _InFlight:
    step: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParts:
    """What every driver of a gateway shares."""

    relay: Relay
    acts: StoreActs
    metrics: Metrics
    clock: Clock


class Driver:
    """Plans for the worker behind ``link``, in the name of ``driver_id``. ``run`` is its whole life."""

    def __init__(
        self, *, driver_id: str, link: WorkerLink, scheduler: Scheduler, queue: RedisQueue, parts: DriverParts
    ) -> None:
        self.driver_id = driver_id
        self._link = link
        self._scheduler = scheduler
        self._queue = queue
        self._relay = parts.relay
        self._acts = parts.acts
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._claimer = Claimer(driver_id=driver_id, queue=queue, take=self._take_claims)
        self._events: list[Event] = []
        self._records: dict[str, SequenceRecord] = {}
        self._slots: dict[int, SequenceRecord] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._early_cancels: OrderedDict[str, None] = OrderedDict()
        self._output: defaultdict[str, list[Delivery]] = defaultdict(list)
        self._gauges = _Gauges(parts.metrics)
        self._stirred = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    # --- from outside -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive until ``stop`` was called and nothing runs, or the worker is lost (raises ``LinkLost``)."""
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self._listen()), group.create_task(self._claimer.run())]
                await self._plan_until_stopped()
                for helper in helpers:
                    helper.cancel()
        except* LinkLost as lost:
            self._abandon(Reason.WORKER_LOST)
            raise LinkLost(str(lost.exceptions[0])) from None
        except* Exception:
            self._abandon(Reason.INTERNAL_ERROR)
            raise
        finally:
            self._gauges.set(slots=0, kv_blocks=0)
            if self._timer is not None:
                self._timer.cancel()

    def stop(self) -> None:
        """Claim nothing more; ``run`` returns when what runs has ended."""
        self._is_stopping = True
        self._claimer.stop_asking()
        self._stirred.set()

    def hand_over(self) -> None:
        """Give back to the store what has not ended, so that another driver continues it; then ``run`` returns."""
        self.stop()
        held = [sequence_id for sequence_id, record in self._records.items() if record.custody is Custody.HELD]
        if held:
            self._acts.give_back(self._queue, self.driver_id, held)
        for record in self._records.values():
            self._relay.release(record.job.origin, record.job.sequence_id)
        self._records.clear()
        self._slots.clear()

    def cancel(self, sequence_ids: Sequence[str]) -> None:
        for sequence_id in sequence_ids:
            if sequence_id in self._records:
                self._events.append(Cancelled(sequence_id=sequence_id))
            else:
                self._early_cancels[sequence_id] = None
        while len(self._early_cancels) > MOST_EARLY_CANCELS:
            self._early_cancels.popitem(last=False)
        self._stirred.set()

    def cancel_origin(self, origin: str) -> None:
        self.cancel([sequence_id for sequence_id, record in self._records.items() if record.job.origin == origin])

    # --- what happens -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            self._take_report(await self._link.receive())
            self._stirred.set()

    def _take_report(self, report: ReportMessage) -> None:
        """Keep its tokens and make deliveries of them; they leave after the next plan has."""
        finished = {slot: FinishReason(reason) for slot, reason in report.finished}
        for slot, token in report.tokens:
            record = self._slots.get(slot)
            if record is not None and not record.closed:
                self._take_token(record, token, finished.get(slot))
        for slot, reason in finished.items():
            record = self._slots.get(slot)
            if reason is FinishReason.FAILED and record is not None and not record.closed:
                self._close(record, error=Reason.INTERNAL_ERROR)
        self._events.append(
            Reported(
                step=report.step,
                finished=tuple([Finished(slot=slot, reason=reason) for slot, reason in finished.items()]),
                live_blocks=report.live_blocks,
            )
        )
        self._count(report)

    def _take_token(self, record: SequenceRecord, token: int, finish: FinishReason | None) -> None:
        """An eos ends the output and is no part of it."""
        position = len(record.output)
        token_ids: tuple[int, ...] = ()
        if finish is not FinishReason.STOP:
            record.output.append(token)
            token_ids = (token,)
        record.closed = finish is not None
        self._output[record.job.origin].append(
            Delivery(
                sequence_id=record.job.sequence_id,
                position=position,
                token_ids=token_ids,
                finish="" if finish is None else finish.value,
                error="",
            )
        )

    def _take_claims(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._take_claim(claim)
        self._stirred.set()

    def _take_claim(self, claim: Claim) -> None:
        """Raises nothing: a job that cannot be run ends here, and its driver lives on."""
        entry_id = claim.entry.entry_id
        if claim.victim_id is not None:
            self._return_victim(claim.victim_id)
        if entry_id in self._early_cancels:
            del self._early_cancels[entry_id]
            self._let_victim_stay(claim)
            self._settle(entry_id)
            return
        record = self._records.get(entry_id) or self._new_record(claim)
        if record is None:
            self._let_victim_stay(claim)
            self._settle(entry_id)
            return
        record.custody = Custody.HELD
        sequence = spec_of(claim, record)
        if claim.victim_id is None:
            self._events.append(Claimed(sequence=sequence))
        else:
            self._events.append(Exchanged(sequence=sequence, victim_id=claim.victim_id))
