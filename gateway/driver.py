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
    Paused,
    PauseReason,
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
from gateway.tasks import run_beside
from workers.wire import Delivery, Hello, Job, ReportMessage, Sampling, WireError, decode

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
            await run_beside(self._plan_until_stopped(), self._listen(), self._claimer.run())
        except LinkLost:
            self._abandon(Reason.WORKER_LOST)
            raise
        except Exception:
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
        finished = _finishes(report)
        for slot, token in report.tokens:
            record = self._slots.get(slot)
            if record is not None and not record.closed:
                self._take_token(record, token, finished.get(slot))
        for slot, reason in finished.items():
            record = self._slots.get(slot)
            if reason is FinishReason.FAILED and record is not None and not record.closed:
                self._close(record, Reason.INTERNAL_ERROR)
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
        """What cannot be run, or was cancelled before it came, is claimed and cancelled in one turn."""
        entry_id = claim.entry.entry_id
        if claim.victim_id is not None:
            self._return_victim(claim.victim_id)
        record = self._records.get(entry_id)
        if record is None:
            record = self._records[entry_id] = self._admit(claim)
        record.custody = Custody.HELD
        sequence = spec_of(claim, record)
        if claim.victim_id is None:
            self._events.append(Claimed(sequence=sequence))
        else:
            self._events.append(Exchanged(sequence=sequence, victim_id=claim.victim_id))
        if entry_id in self._early_cancels:
            del self._early_cancels[entry_id]
            self._events.append(Cancelled(sequence_id=entry_id))
        elif record.closed:
            self._events.append(Cancelled(sequence_id=entry_id))

    def _admit(self, claim: Claim) -> SequenceRecord:
        """A record for a new claim, closed already when its sequence cannot be run here."""
        job = _job_of(claim)
        if job is None:
            _log.error("unreadable job", driver=self.driver_id, entry=claim.entry.entry_id)
            return SequenceRecord(job=_unreadable(claim), closed=True)
        record = SequenceRecord.of(job)
        if not _fits(job, self._link.hello):
            self._close(record, Reason.CONTEXT_LENGTH_EXCEEDED)
        return record

    def _return_victim(self, victim_id: str) -> None:
        """The store has put the victim into this driver's line. One that has ended meanwhile must not stay there."""
        victim = self._records.get(victim_id)
        self._metrics.preemptions.labels(PauseReason.SLOT.value).inc()
        if victim is not None:
            victim.custody = Custody.RETURNED
        else:
            self._withdraw(victim_id)

    # --- turns --------------------------------------------------------------------------------------------------------

    async def _plan_until_stopped(self) -> None:
        self._stirred.set()  # the first turn says what is wanted
        while not (self._is_stopping and not self._records):
            await self._stirred.wait()
            self._stirred.clear()
            self._turn()

    def _turn(self) -> None:
        events, self._events = self._events, []
        step = self._step(events)
        while step.plan is not None:
            self._send(step.plan)
            step = self._step(())
        self._claimer.want(step.want)
        self._arm(step.wake_at)
        self._deliver()
        self._gauges.set(slots=self._scheduler.slots_in_use, kv_blocks=self._scheduler.kv_blocks_in_use)

    def _step(self, events: Sequence[Event]) -> Step:
        try:
            step = self._scheduler.step(events, self._clock())
        except ReportError as error:
            raise LinkLost(f"{self.driver_id} sent a wrong report: {error}") from None
        for ended in step.ended:
            self._end(ended.sequence_id, ended.reason)
        if step.paused:
            self._give_back(step.paused)
        return step

    def _send(self, plan: Plan) -> None:
        for start in plan.starts:
            record = self._records[start.sequence_id]
            record.slot = start.slot
            self._slots[start.slot] = record
        self._link.send(plan_message(plan, epoch=self._link.epoch, records=self._records))
        self._in_flight.append(_InFlight(plan.step, sum([span.length for span in plan.prefill])))

    def _end(self, sequence_id: str, reason: EndReason) -> None:
        record = self._records.pop(sequence_id, None)
        if record is None:
            return  # handed over: the store and its origin know
        if record.slot is not None and self._slots.get(record.slot) is record:
            del self._slots[record.slot]
        if not record.closed:
            self._tell_end(record, reason)
        if record.custody is Custody.HELD:
            self._acts.settle(self._queue, self.driver_id, (sequence_id,))
        else:
            self._withdraw(sequence_id)

    def _tell_end(self, record: SequenceRecord, reason: EndReason) -> None:
        match reason:
            case EndReason.CANCELLED:
                self._relay.release(record.job.origin, record.job.sequence_id)
            case EndReason.STOP | EndReason.LENGTH:
                self._close(record, finish=reason.value)
            case _:
                self._close(record, _REASONS[reason])

    def _close(self, record: SequenceRecord, error: Reason | None = None, *, finish: str = "") -> None:
        """Tell the origin how it ended."""
        record.closed = True
        self._output[record.job.origin].append(
            Delivery(
                sequence_id=record.job.sequence_id,
                position=len(record.output),
                token_ids=(),
                finish=finish,
                error="" if error is None else error.value,
            )
        )

    def _give_back(self, paused: Iterable[Paused]) -> None:
        for pause in paused:
            self._metrics.preemptions.labels(pause.reason.value).inc()
            record = self._records.get(pause.sequence_id)
            if record is not None:
                record.custody = Custody.RETURNED
                self._acts.give_back(self._queue, self.driver_id, (pause.sequence_id,))

    def _withdraw(self, sequence_id: str) -> None:
        """Out of the line; when a claim of it is on its way, it is cancelled on arrival."""
        self._acts.withdraw(
            self._queue, sequence_id, lambda entry_id, driver_id: self._relay.cancel(driver_id, (entry_id,))
        )

    def _deliver(self) -> None:
        output, self._output = self._output, defaultdict(list)
        for origin, deliveries in output.items():
            self._relay.deliver(self.driver_id, origin, deliveries)

    def _arm(self, wake_at: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            delay_s = max(0, wake_at - self._clock()) / 1_000_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._stirred.set)

    def _abandon(self, reason: Reason) -> None:
        """The worker is lost, and with it all that it held."""
        for record in self._records.values():
            if record.custody is Custody.RETURNED:
                self._relay.release(record.job.origin, record.job.sequence_id)
            elif not record.closed:
                self._close(record, reason)
        held = [sequence_id for sequence_id, record in self._records.items() if record.custody is Custody.HELD]
        if held:
            self._acts.settle(self._queue, self.driver_id, held)
        self._records.clear()
        self._slots.clear()
        self._deliver()

    def _count(self, report: ReportMessage) -> None:
        metrics = self._metrics
        metrics.iterations.inc()
        metrics.prompt_tokens.inc(self._in_flight.popleft().prefill_tokens)
        metrics.output_tokens.inc(len(report.tokens))
        metrics.worker_busy.inc(report.busy_us / 1_000_000)
        metrics.worker_idle.inc(report.idle_us / 1_000_000)


class _Gauges:
    """One driver's part of the gauges that count over all drivers of the gateway."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._slots = 0
        self._kv_blocks = 0

    def set(self, *, slots: int, kv_blocks: int) -> None:
        if slots != self._slots:
            self._metrics.slots_in_use.inc(slots - self._slots)
            self._slots = slots
        if kv_blocks != self._kv_blocks:
            self._metrics.kv_blocks_in_use.inc(kv_blocks - self._kv_blocks)
            self._kv_blocks = kv_blocks


def _finishes(report: ReportMessage) -> dict[int, FinishReason]:
    try:
        return {slot: FinishReason(reason) for slot, reason in report.finished}
    except ValueError as error:
        raise LinkLost(f"the worker reported a finish that is none: {error}") from None


def _job_of(claim: Claim) -> Job | None:
    try:
        job = decode(claim.entry.payload)
    except WireError:
        return None
    return job if isinstance(job, Job) and job.sequence_id == claim.entry.entry_id and job.prompt_ids else None


def _unreadable(claim: Claim) -> Job:
    """Stands for a job that nobody can read, so that it ends like any other. It has no origin to tell."""
    return Job(
        sequence_id=claim.entry.entry_id,
        origin="",
        class_name=claim.entry.class_name,
        rank=claim.entry.rank,
        prompt_ids=(0,),
        emitted_ids=(),
        max_tokens=1,
        expected_tokens=1,
        sampling=Sampling(),
        deadline_us=None,
    )


def _fits(job: Job, hello: Hello) -> bool:
    most_tokens = len(job.prompt_ids) + job.max_tokens
    return most_tokens <= min(hello.card.context_length, hello.kv_blocks * hello.block_size)
