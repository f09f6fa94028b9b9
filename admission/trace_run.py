"""Simulation of an arrival trace: the queue rule in memory and the live scheduler in one loop, one plan in flight.

Time is what iterations cost under a cost model. One turn of the loop:

1. The requests that have arrived by now are offered, each at its own time: refused at the door if they can never fit,
   else handed to the driver's standing want, queued, or refused by the bounds of the queue.
2. The driver claims until the store gives it nothing more. Exchanges displace running sequences.
3. ``step`` decides the iteration. What it preempted for memory goes back into the queue.
4. The iteration runs; what ended is reported and settled, and the clock stands at its end.

When nothing can run, the clock goes to the next arrival or to the time at which the scheduler asks to be woken. A plan
that only frees slots computes nothing: it takes no time and is no iteration.

Expected output is what a gateway would expect: a recent quantile per class of what has ended before the arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from admission.estimate import OutputEstimate
from admission.events import (
    Claimed,
    Event,
    Exchanged,
    Finished,
    FinishReason,
    PauseReason,
    Plan,
    Reported,
    SequenceSpec,
    Step,
)
from admission.presets import PrefillRule
from admission.queue import Claim, Offered
from admission.record.simulated import SimulationLog
from admission.scheduler import Scheduler
from admission.trace import Result
from admission.trace_batch import Running, TraceBatch
from admission.trace_csv import Arrival
from admission.trace_queue import TraceQueue
from admission.trace_rows import Iteration, Rejection, RequestRecord
from admission.trace_setup import TraceSetup

_TAKEN = (Offered.QUEUED, Offered.HANDED)


class TraceRun:
    """One run. ``arrivals`` are in the order of their arrival, with unique ids.

    ``iterations`` gives a row after the other until every request is completed or rejected. ``records`` are then
    complete.
    """

    def __init__(self, arrivals: Sequence[Arrival], setup: TraceSetup, log: SimulationLog | None = None) -> None:
        self.records: dict[str, RequestRecord] = {}
        self.num_done = 0
        self._arrivals = arrivals
        self._setup = setup
        self._scheduler = Scheduler(setup.limits, setup.preset, progress=setup.preset.progress)
        self._queue = TraceQueue(
            order=setup.queue_order,
            max_requests=setup.max_queue,
            max_tokens=setup.queue_tokens,
            max_passes=setup.max_passes,
            num_requests=len(arrivals),
        )
        self._batch = TraceBatch()
        self._specs: dict[str, SequenceSpec] = {}
        self._ended: list[RequestRecord] = []
        self._estimates = {arrival.cls.name: OutputEstimate() for arrival in arrivals}
        self._now_us = 0
        self._row = Iteration(iteration=0)
        self._log = log
        if log is not None:
            log.open(self._scheduler, setup.doorway(arrivals))

    def iterations(self) -> Iterator[Iteration]:
        """Run. A row belongs to the caller once it is given."""
        self._claim()  # so that a want stands before the first arrival, as behind an idle gateway
        while self.num_done < len(self._arrivals):
            self._take_arrivals()
            self._claim()
            step = self._step()
            if step.paused:
                self._give_back([paused.sequence_id for paused in step.paused])
            if step.plan is None:
                if self.num_done < len(self._arrivals):
                    self._idle_until(step.wake_at)
            elif step.plan.decode or step.plan.prefill:
                yield self._run(step.plan)
            else:
                self._batch.apply(step.plan, self.records, self._row.iteration)
                self._tell(Reported(step=step.plan.step))
        if self._log is not None:
            self._step()  # takes in the last report
            self._log.close(self._now_us)

    def _step(self) -> Step:
        step = self._scheduler.step((), self._now_us)
        if self._log is not None:
            self._log.stepped(self._now_us, step)
        return step

    def _tell(self, event: Event) -> None:
        self._scheduler.take(event, self._now_us)
        if self._log is not None:
            self._log.took(event)

    # --- the door and the queue ---------------------------------------------------------------------------------------

    def _take_arrivals(self) -> None:
        """What happened since the last turn, in the order of time: an iteration's ends come after its arrivals."""
        while (arrival := self._next_arrival()) is not None and arrival.arrival_us <= self._now_us:
            self._take(self._queue.keep_want(arrival.arrival_us))
            self._offer(arrival)
        for record in self._ended:
            self._estimates[record.arrival.cls.name].note(record.arrival.output_tokens)
        self._queue.settle([record.arrival.request_id for record in self._ended], self._now_us)
        self._ended = []

    def _next_arrival(self) -> Arrival | None:
        return self._arrivals[len(self.records)] if len(self.records) < len(self._arrivals) else None

    def _offer(self, arrival: Arrival) -> None:
        record = RequestRecord(arrival=arrival, arrived_in=self._row.iteration)
        self.records[arrival.request_id] = record
        self._row.num_arrived += 1
        max_tokens = self._setup.allowed_output(arrival.prompt_tokens, arrival.output_tokens)
        if max_tokens is None:
            self._reject(record, Rejection.CONTEXT_LENGTH_EXCEEDED)
            if self._log is not None:
                self._log.refused(arrival, Rejection.CONTEXT_LENGTH_EXCEEDED)
            return
        expected = self._estimates[arrival.cls.name].expected(max_tokens)
        spec = SequenceSpec(
            sequence_id=arrival.request_id,
            class_name=arrival.cls.name,
            rank=arrival.cls.rank,
            score=0,
            arrival_us=arrival.arrival_us,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=max_tokens,
            expected_tokens=expected,
            tenant=arrival.tenant,
        )
        answer = self._queue.offer(arrival, arrival.prompt_tokens + expected)
        self._row.peak_waiting = max(self._row.peak_waiting, answer.num_waiting)
        if self._log is not None:
            self._log.offered(
                arrival.arrival_us,
                spec,
                answer.standing,
                answer.outcome,
                ahead=answer.ahead,
                waiting=answer.num_waiting,
            )
        if answer.outcome in _TAKEN:
            self._specs[arrival.request_id] = spec
        else:
            self._reject(record, Rejection(answer.outcome.value))

    def _reject(self, record: RequestRecord, reason: Rejection) -> None:
        record.result, record.rejection = Result.REJECTED, reason
        self._row.rejected.append((record.arrival.request_id, reason))
        self.num_done += 1

    def _claim(self) -> None:
        while claims := self._queue.claim(self._scheduler.want(), self._now_us):
            self._take(claims)

    def _take(self, claims: Sequence[Claim]) -> None:
        if self._log is not None:
            self._log.claimed(self._now_us, claims)
        for claim in claims:
            self._tell(self._event(claim))

    def _event(self, claim: Claim) -> Event:
        """Score and arrival are the store's word."""
        spec = replace(self._specs[claim.entry.entry_id], score=claim.score, arrival_us=claim.arrival_us)
        if claim.victim_id is None:
            return Claimed(sequence=spec)
        self.records[claim.victim_id].slot_preemptions += 1
        self._note_pause(claim.victim_id, PauseReason.SLOT)
        return Exchanged(sequence=spec, victim_id=claim.victim_id)

    def _give_back(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.records[request_id].kv_preemptions += 1
            self._note_pause(request_id, PauseReason.KV)
        self._queue.give_back(request_ids, self._now_us)

    def _note_pause(self, request_id: str, reason: PauseReason) -> None:
        self._batch.pause(request_id, self._row.iteration)
        self._row.preempted.append((request_id, reason))

    # --- iterations ---------------------------------------------------------------------------------------------------

    def _run(self, plan: Plan) -> Iteration:
        row, setup = self._row, self._setup
        row.num_held_back = self._batch.apply(plan, self.records, row.iteration)
        row.at_us = self._now_us
        row.took_us = setup.cost.iteration_us(self._batch.work(plan))
        self._describe(row, plan)
        self._now_us += row.took_us
        row.gaps, finished = self._batch.execute(plan, row.iteration, self._now_us, row.took_us)
        for request_id in row.prefill_emitted:
            record = self.records[request_id]
            if record.first_output is None:
                record.first_output, record.first_output_us = row.iteration, self._now_us
        self._row = Iteration(iteration=row.iteration + 1)
        self._report(plan, row, finished)
        return row

    def _describe(self, row: Iteration, plan: Plan) -> None:
        limits, batch = self._setup.limits, self._batch
        row.started = [start.sequence_id for start in plan.starts]
        row.num_decode = len(plan.decode)
        row.prefill = [(batch.running_in(span.slot).request_id, span.length) for span in plan.prefill]
        row.prefill_emitted = [batch.running_in(span.slot).request_id for span in plan.prefill if span.emits]
        row.num_waiting = self._queue.num_waiting()
        row.peak_waiting = max(row.peak_waiting, row.num_waiting)
        row.slots = self._scheduler.slots_in_use
        if limits.kv_blocks is not None:
            row.kv_blocks = self._scheduler.kv_blocks_in_use
        if limits.token_budget is not None and self._setup.preset.prefill is not PrefillRule.WHOLE:
            row.unused_budget = limits.token_budget - row.num_decode - row.prefill_tokens

    def _report(self, plan: Plan, row: Iteration, finished: Sequence[Running]) -> None:
        """Tell the scheduler what ended: by length if it gave all that it was allowed."""
        ends = []
        for running in finished:
            record, arrival = running.record, running.record.arrival
            record.result, record.completed, record.completed_us = Result.COMPLETED, row.iteration, self._now_us
            spec = self._specs.pop(arrival.request_id)
            is_cut = arrival.output_tokens == spec.max_tokens
            ends.append(Finished(slot=running.slot, reason=FinishReason.LENGTH if is_cut else FinishReason.STOP))
            row.completed.append(arrival.request_id)
            self._ended.append(record)
        self.num_done += len(finished)
        if self._log is not None:
            num_tokens = row.num_decode + len(row.prefill_emitted)
            self._log.executed(self._now_us, plan.step, took_us=row.took_us, num_tokens=num_tokens)
        self._tell(Reported(step=plan.step, finished=tuple(ends)))

    def _idle_until(self, wake_us: int | None) -> None:
        arrival = self._next_arrival()
        times = [wake_us] if wake_us is not None else []
        if arrival is not None:
            times.append(arrival.arrival_us)
        if not times:
            raise AssertionError(f"nothing will ever run, and {len(self._arrivals) - self.num_done} requests are left")
        self._now_us = min(times)
