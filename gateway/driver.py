"""The driver: one loop per worker that this gateway holds, from a link's welcome to its loss.

Everything that happens (claims, cancels, reports, a timer) becomes an event and brings a turn: a report at once, the
others by stirring the loop. Each turn gives the events to the scheduler, sends the plans that it makes (up to two are
with the worker), then brings the tokens that came to their origins. A turn never waits: the store is asked by the
claimer and told by ``StoreActs``, origins are reached through the relay, and the worker's socket is buffered.

When the link is lost, everything held ends here and is settled; its origin is told, and offers it again with the tokens
that it has. What was returned to the store waits there for whoever claims it next, and starts from its prompt: its
origin drops what it has already.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from admission.events import Cancelled, Claimed, Event, Exchanged, Finished, FinishReason, Plan, Reported, Step
from admission.queue import Claim
from admission.redis_queue import RedisQueue
from admission.scheduler import ReportError, Scheduler
from gateway.claimer import Claimer
from gateway.clock import Clock
from gateway.driver_log import DriverLog
from gateway.forecast import DriverSpeed
from gateway.frames import LinkLost
from gateway.line_speed import LineSpeed
from gateway.links import WorkerLink
from gateway.metrics import Metrics, WorkerMetrics
from gateway.recording import Recorder
from gateway.relay import Relay
from gateway.rest import Rest
from gateway.sequence_book import SequenceBook
from gateway.sequence_records import plan_message, spec_of
from gateway.store_acts import StoreActs
from gateway.tasks import run_beside
from workers.wire import Hello, ReportMessage

MOST_EARLY_CANCELS = 4096
"""Cancels that overtook their claim, kept until the claim comes. An origin cancels each sequence once, and what ended
here while an exchange put it back into the line is taken out of it once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParts:
    """What every driver of a gateway shares."""

    relay: Relay
    acts: StoreActs
    metrics: Metrics
    clock: Clock
    recorder: Recorder | None = None


class _Phase(Enum):
    """CLAIMING more; FINISHING what runs; LEAVING, with nothing."""

    CLAIMING = auto()
    FINISHING = auto()
    LEAVING = auto()


class Driver:
    """Plans for the worker behind ``link``, in the name of ``driver_id``. ``run`` is its whole life."""

    def __init__(
        self,
        *,
        driver_id: str,
        link: WorkerLink,
        scheduler: Scheduler,
        queue: RedisQueue,
        speed: LineSpeed,
        parts: DriverParts,
        log: DriverLog | None = None,
    ) -> None:
        self.driver_id = driver_id
        self._link = link
        self._scheduler = scheduler
        self._speed = speed
        self._log = log
        self._metrics = parts.metrics.workers
        self._clock = parts.clock
        self._book = SequenceBook(
            driver_id=driver_id,
            most_tokens=_most_tokens(link.hello),
            shared_block_size=link.hello.block_size if scheduler.shares_prefixes else None,
            queue=queue,
            acts=parts.acts,
            relay=parts.relay,
            metrics=parts.metrics.workers,
            withdrawn=lambda sequence_id: self.cancel((sequence_id,)),
        )
        self._claimer = Claimer(driver_id=driver_id, queue=queue, take=self._take_claims)
        self._gauges = _Gauges(parts.metrics.workers)
        self._rest = Rest(self._stir)
        self._events: list[Event] = []
        self._prefills: deque[int] = deque()  # prompt tokens of each plan in flight
        self._early_cancels: OrderedDict[str, None] = OrderedDict()
        self._stirred = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at: int | None = None  # microseconds, what the timer is for
        self._phase = _Phase.CLAIMING

    # --- from outside -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive until ``stop`` was called and nothing runs, or the worker is lost (raises ``LinkLost``)."""
        try:
            await run_beside(self._plan_until_stopped(), self._link.hand_on(self._take_reports), self._claimer.run())
        except Exception:  # the link is lost, or the fault is the driver's own: neither is any sequence's
            self._book.abandon()
            raise
        finally:
            self._gauges.set(slots=0, kv_blocks=0)
            self._rest.end()
            if self._timer is not None:
                self._timer.cancel()
            if self._log is not None:
                self._log.close()

    def stop(self) -> None:
        """Claim nothing more; ``run`` returns when what runs has ended."""
        self._phase = _Phase.FINISHING
        self._claimer.stop_asking()
        self._stirred.set()

    def hand_over(self) -> None:
        """Give back to the store what has not ended, for another driver to continue; then ``run`` returns."""
        self.stop()
        self._phase = _Phase.LEAVING
        self._book.hand_over()

    @property
    def speed(self) -> DriverSpeed:
        """How fast the line drains through this driver."""
        return DriverSpeed(model=self._link.hello.card.name, tokens_per_s=self._speed.tokens_per_s())

    def runs(self, sequence_id: str) -> bool:
        return self._book.holds(sequence_id)

    def cancel(self, sequence_ids: Sequence[str]) -> None:
        for sequence_id in sequence_ids:
            if sequence_id in self._book.records:
                self._events.append(Cancelled(sequence_id=sequence_id))
            else:
                self._early_cancels[sequence_id] = None
        while len(self._early_cancels) > MOST_EARLY_CANCELS:
            self._early_cancels.popitem(last=False)
        self._stirred.set()

    def cancel_origin(self, origin: str) -> None:
        self.cancel(self._book.of_origin(origin))

    # --- what happens -------------------------------------------------------------------------------------------------

    def _take_reports(self, reports: Sequence[ReportMessage]) -> None:
        """In the very call that brings their bytes: the next plan is on its way before anything else happens."""
        for report in reports:
            self._take_report(report)
        self._turn()
        if self._is_done:
            self._stirred.set()

    def _take_report(self, report: ReportMessage) -> None:
        """Its tokens leave after the next plan has: the worker waits for nobody."""
        finished = _finishes(report)
        if self._log is not None:
            self._log.executed(report)
        try:
            self._book.take_report(report, finished)
        except ReportError as error:
            raise self._wrong(error) from None
        self._events.append(
            Reported(
                step=report.step,
                finished=tuple([Finished(slot=slot, reason=reason) for slot, reason in finished.items()]),
                live_blocks=report.live_blocks,
                host_blocks=report.host_blocks,
            )
        )
        self._count(report)

    def _take_claims(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._take_claim(claim)
        if self._phase is _Phase.LEAVING:  # these were on their way when everything else was handed over
            self._book.hand_over()
        self._stirred.set()

    def _take_claim(self, claim: Claim) -> None:
        """What cannot be run, or was cancelled before it came, is claimed and cancelled in one turn."""
        if claim.victim_id is not None:
            self._book.return_victim(claim.victim_id)
        if claim.entry.entry_id not in self._book.records:  # else it is back, and had left the line before
            self._speed.note(claim.entry.tokens)
        record = self._book.admit(claim)
        sequence = spec_of(claim, record)
        # One that was cancelled while this claim of it was on its way ends with that event; it must not begin anew.
        cancelled = Cancelled(sequence_id=sequence.sequence_id)
        is_cancelled = record.closed or cancelled in self._events or sequence.sequence_id in self._early_cancels
        if claim.victim_id is None:
            self._events.append(Claimed(sequence=sequence))
        else:
            self._events.append(Exchanged(sequence=sequence, victim_id=claim.victim_id))
        if is_cancelled:
            self._early_cancels.pop(sequence.sequence_id, None)
            self._events.append(cancelled)

    # --- turns --------------------------------------------------------------------------------------------------------

    async def _plan_until_stopped(self) -> None:
        while not self._is_done:
            self._turn()  # the first one says what is wanted
            await self._stirred.wait()
            self._stirred.clear()

    def _stir(self) -> None:
        self._stirred.set()

    @property
    def _is_done(self) -> bool:
        return self._phase is not _Phase.CLAIMING and not self._book.records

    def _turn(self) -> None:
        events, self._events = self._events, []
        step = self._step(events)
        while step.plan is not None:
            self._send(step.plan)
            if self._scheduler.is_ahead:
                break
            step = self._step(())
        self._claimer.want(step.want)
        self._arm(step.wake_at)
        self._book.deliver()
        slots = self._scheduler.slots_in_use
        if self._rest.is_long(slots_in_use=slots):
            self._scheduler.check()  # every block must be back; raises, and this driver starts anew
        self._gauges.set(slots=slots, kv_blocks=self._scheduler.kv_blocks_in_use)

    def _step(self, events: Sequence[Event]) -> Step:
        now_us = self._clock()
        if self._log is not None:
            self._log.before_step()
        try:
            step = self._scheduler.step(events, now_us)
        except ReportError as error:
            raise self._wrong(error) from None
        if self._log is not None:
            self._log.stepped(now_us, events, step)
        for ended in step.ended:
            self._book.end(ended.sequence_id, ended.reason)
        if step.paused:
            self._book.give_back(step.paused)
        return step

    def _wrong(self, error: ReportError) -> LinkLost:
        """The worker is treated as lost."""
        return LinkLost(f"{self.driver_id} sent a wrong report: {error}")

    def _send(self, plan: Plan) -> None:
        self._book.start(plan.starts)
        self._link.send(plan_message(plan, epoch=self._link.epoch, records=self._book.records))
        self._prefills.append(sum([span.length for span in plan.prefill]))
        if plan.starts:
            computed = sum([start.computed_tokens for start in plan.starts])
            swapped = sum([start.swapped_tokens for start in plan.starts])
            self._metrics.prompt_tokens_found.inc(computed - swapped)
            self._metrics.swapped_tokens.inc(swapped)

    def _arm(self, wake_at: int | None) -> None:
        """The next deadline stays the same over many turns, and the timer with it."""
        if wake_at == self._wakes_at:
            return
        self._wakes_at = wake_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            delay_s = max(0, wake_at - self._clock()) / 1_000_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._wakes_at = None  # should it be too early by a microsecond, the turn that it brings arms another
        self._stirred.set()

    def _count(self, report: ReportMessage) -> None:
        metrics = self._metrics
        metrics.iterations.inc()
        metrics.prompt_tokens.inc(self._prefills.popleft())
        metrics.output_tokens.inc(len(report.tokens))
        metrics.busy.inc(report.busy_us / 1_000_000)
        metrics.idle.inc(report.idle_us / 1_000_000)


class _Gauges:
    """One driver's part of the gauges that count over all drivers of the gateway."""

    def __init__(self, metrics: WorkerMetrics) -> None:
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


def _most_tokens(hello: Hello) -> int:
    return min(hello.card.context_length, hello.kv_blocks * hello.block_size)
