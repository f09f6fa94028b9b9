"""One driver of a simulated trace: its scheduler, and the worker behind it that executes plans one after the other.

Like a live driver it takes *turns*: it claims until the store gives it nothing more, and plans until as many plans are
on the worker as may be, or nothing is to run. Where plans run ahead of reports it then claims once more, as a live
driver does while the plan computes; with one plan in flight it waits for the report. The worker begins a plan when it
has executed the one before. What it does and how long that takes is known when it begins; what has come of it is told
at its end (``finish``).

A plan that only frees slots, or names nobody but those whose end it crossed, computes nothing: it takes no time and is
no iteration. What was preempted, or has left, since the plan before is in no later plan; the worker stops it with the
next one that it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from admission.events import (
    Cancelled,
    Claimed,
    EndReason,
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
from admission.limits import Limits
from admission.presets import PrefillRule
from admission.queue import Claim
from admission.record.simulated import SimulationLog
from admission.scheduler import Scheduler
from admission.trace_batch import Running, TraceBatch
from admission.trace_queue import TraceQueue
from admission.trace_rows import Iteration, RequestRecord
from admission.trace_setup import TraceSetup


@dataclass(slots=True, kw_only=True)
class Board:
    """What all drivers of a run share: how every request fares, what they are offered as, and the next row's number.

    ``specs`` are of those that were taken and have not ended.
    """

    records: dict[str, RequestRecord]
    specs: dict[str, SequenceSpec]
    num_iterations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A plan on its way to the worker, and as it was made: who stopped since the plan before, what was in use."""

    plan: Plan
    stopped: tuple[str, ...]
    num_waiting: int
    slots: int
    kv_blocks: int


class TraceDriver:
    """``begins`` makes the row of an iteration that begins now. Times do not go back from call to call."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        *,
        setup: TraceSetup,
        queue: TraceQueue,
        board: Board,
        begins: Callable[[], Iteration],
        log: SimulationLog | None,
    ) -> None:
        self.name = name
        self.scheduler = Scheduler(limits, setup.preset, progress=setup.preset.progress)
        self.ends_us: int | None = None
        self.wake_us: int | None = None
        self._limits = limits
        self._setup = setup
        self._queue = queue
        self._board = board
        self._begins = begins
        self._log = log
        self._batch = TraceBatch()
        self._sent: deque[_Sent] = deque()
        self._stopped: list[str] = []
        self._preempted: list[tuple[str, PauseReason]] = []
        self._running: tuple[Plan, Iteration] | None = None
        self._spoke_us = 0
        self._num_begun = 0  # of this worker's iterations

    def next_us(self) -> int | None:
        """When something happens here by itself; None: never."""
        wakes_us = None if self.scheduler.is_ahead else self.wake_us
        return min([us for us in (self.ends_us, wakes_us) if us is not None], default=None)

    # --- turns --------------------------------------------------------------------------------------------------------

    def claim(self, now_us: int) -> bool:
        """Whether anything was given."""
        has_claimed = False
        while claims := self._queue.claim(self.name, self.scheduler.want(), now_us):
            self.take(claims, now_us)
            has_claimed = True
        return has_claimed

    def keep_want(self, now_us: int) -> None:
        """Speak up if the want would expire otherwise, and take what was handed over."""
        self.take(self._queue.keep_want(self.name, now_us), now_us)

    def take(self, claims: Sequence[Claim], now_us: int) -> None:
        if self._log is not None:
            self._log.claimed(now_us, claims, self.name)
        for claim in claims:
            self._tell(self._event(claim), now_us)

    def turn(self, now_us: int) -> None:
        """Claim, plan, and let the worker begin."""
        while True:
            self.claim(now_us)
            step = self.step(now_us)
            while step.plan is not None:
                self._send(step.plan)
                if self.scheduler.is_ahead:
                    break
                step = self.step(now_us)
            self.wake_us = step.wake_at
            has_reported = self._begin(now_us)
            has_claimed = self._limits.max_in_flight > 1 and self.claim(now_us)
            if not has_reported and (not has_claimed or self.scheduler.is_ahead):
                return

    def step(self, now_us: int) -> Step:
        step = self.scheduler.step((), now_us)
        if self._log is not None:
            self._log.stepped(now_us, step, self.name)
        if step.paused:
            paused = [each.sequence_id for each in step.paused]
            for request_id in paused:
                self._board.records[request_id].kv_preemptions += 1
                self._note_pause(request_id, PauseReason.KV)
            self._queue.give_back(self.name, paused, now_us)
        left = [ended.sequence_id for ended in step.ended if ended.reason is EndReason.CANCELLED]
        if left:
            self._stopped += left
            self.settle(left, now_us)
        return step

    def cancel(self, request_id: str, now_us: int) -> None:
        """Nobody wants it any more."""
        self._tell(Cancelled(sequence_id=request_id), now_us)

    def settle(self, request_ids: Sequence[str], now_us: int) -> None:
        self._queue.settle(self.name, request_ids, now_us)
        if self._log is not None:
            self._log.settled(now_us, request_ids, self.name)

    def _tell(self, event: Event, now_us: int) -> None:
        self.scheduler.take(event, now_us)
        if self._log is not None:
            self._log.took(event, self.name)

    def _event(self, claim: Claim) -> Event:
        """Score and arrival are the store's word."""
        spec = replace(self._board.specs[claim.entry.entry_id], score=claim.score, arrival_us=claim.arrival_us)
        if claim.victim_id is None:
            return Claimed(sequence=spec)
        self._board.records[claim.victim_id].slot_preemptions += 1
        self._note_pause(claim.victim_id, PauseReason.SLOT)
        return Exchanged(sequence=spec, victim_id=claim.victim_id)

    def _note_pause(self, request_id: str, reason: PauseReason) -> None:
        self._stopped.append(request_id)
        self._preempted.append((request_id, reason))

    # --- the worker ---------------------------------------------------------------------------------------------------

    def _send(self, plan: Plan) -> None:
        stopped, self._stopped = tuple(self._stopped), []
        self._sent.append(
            _Sent(
                plan=plan,
                stopped=stopped,
                num_waiting=self._queue.num_waiting(),
                slots=self.scheduler.slots_in_use,
                kv_blocks=self.scheduler.kv_blocks_in_use,
            )
        )

    def _begin(self, now_us: int) -> bool:
        """Let an idle worker begin what was sent; whether it has reported something at once, which calls for a turn."""
        has_reported = False
        while self._running is None and self._sent:
            sent = self._sent.popleft()
            for request_id in sent.stopped:
                self._batch.pause(request_id, self._num_begun)
            num_held_back = self._batch.apply(sent.plan, self._board.records, self._num_begun)
            if self._batch.num_decoding or sent.plan.prefill:
                self._run(sent, num_held_back, now_us)
            else:
                self._tell(Reported(step=sent.plan.step), now_us)
                has_reported = True
        return has_reported

    def _run(self, sent: _Sent, num_held_back: int, now_us: int) -> None:
        plan, batch, row = sent.plan, self._batch, self._begins()
        row.preempted, self._preempted = self._preempted, []
        row.num_held_back = num_held_back
        row.at_us = now_us
        row.took_us = self._setup.cost.iteration_us(batch.work(plan))
        row.started = [start.sequence_id for start in plan.starts]
        row.num_decode = batch.num_decoding
        row.prefill = [(batch.running_in(span.slot).request_id, span.length) for span in plan.prefill]
        row.prefill_emitted = [batch.running_in(span.slot).request_id for span in plan.prefill if span.emits]
        row.num_waiting = sent.num_waiting
        row.peak_waiting = max(row.peak_waiting, row.num_waiting)
        row.slots = sent.slots
        limits = self._limits
        if limits.kv_blocks is not None:
            row.kv_blocks = sent.kv_blocks
        if limits.token_budget is not None and self._setup.preset.prefill is not PrefillRule.WHOLE:
            row.unused_budget = limits.token_budget - row.num_decode - row.prefill_tokens
        self._running = plan, row
        self.ends_us = now_us + row.took_us

    def finish(self, now_us: int) -> tuple[Iteration, list[RequestRecord]]:
        """The iteration that ends now, and the requests that are completed with it, which nobody has settled yet."""
        assert self._running is not None  # noqa: S101 - the caller saw that it ends
        (plan, row), self._running, self.ends_us = self._running, None, None
        row.gaps, finished = self._batch.execute(plan, self._num_begun, now_us, row.took_us)
        self._num_begun += 1
        for request_id in row.prefill_emitted:
            record = self._board.records[request_id]
            if record.first_output is None:
                record.first_output, record.first_output_us = row.iteration, now_us
        if self._log is not None:
            num_tokens = row.num_decode + len(row.prefill_emitted)
            self._log.executed(now_us, plan.step, took_us=row.took_us, num_tokens=num_tokens, driver_id=self.name)
        ends, completed = self._ends(finished, row, now_us)
        self._tell(Reported(step=plan.step, finished=tuple(ends)), now_us)
        return row, completed

    def _ends(
        self, finished: Sequence[Running], row: Iteration, now_us: int
    ) -> tuple[list[Finished], list[RequestRecord]]:
        """What the worker reports: by length if it gave all that it was allowed. Some have left in the meantime."""
        ends, completed = [], []
        for running in finished:
            spec = self._board.specs.pop(running.request_id, None)
            is_cut = spec is not None and running.record.arrival.output_tokens == spec.max_tokens
            ends.append(Finished(slot=running.slot, reason=FinishReason.LENGTH if is_cut else FinishReason.STOP))
            if spec is not None:
                running.record.complete(row.iteration, now_us)
                row.completed.append(running.request_id)
                completed.append(running.record)
        return ends, completed
