"""Simulation of a scenario: the scenario's queue rule and the live scheduler in one loop, one plan in flight.

Time is counted in iterations. An arrival is offered to the scheduler's want first, so it takes a free slot at once; it
waits only when there is none. The worker here is an ideal one: it executes every plan as it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from admission.classes import PriorityClass
from admission.events import Claimed, Exchanged, Finished, FinishReason, Plan, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import PrefillRule, Preset, SlotPreemption
from admission.queue import Offered, QueueBounds
from admission.record.entries import TimeUnit
from admission.record.simulated import DRIVER, Doorway, SimulationLog
from admission.scenario import Policy, Priority, Request, Scenario
from admission.scheduler import Scheduler
from admission.standing import HeadStart, Standing, WaitingOrderName
from admission.trace import Outcome, RequestSummary, Result, Row, Termination

RANKS: Mapping[Priority, int] = {Priority.HIGH: 0, Priority.NORMAL: 1}


def simulate(scenario: Scenario, preset: Preset, log: SimulationLog | None = None) -> Outcome:
    """Run a scenario to its end, or to its iteration limit; with ``log``, record it."""
    run = _Run(scenario, preset, log)
    termination = Termination.ITERATION_LIMIT
    for iteration in range(scenario.policy.max_iterations):
        run.iterate(iteration)
        if run.is_over():
            termination = Termination.ALL_TERMINAL
            break
    outcome = Outcome(termination=termination, policy=scenario.policy, trace=tuple(run.trace), requests=run.summaries())
    run.close()
    return outcome


class _Run:
    """The queue rule: bounded, first come first served, a preempted request at the front."""

    def __init__(self, scenario: Scenario, preset: Preset, log: SimulationLog | None) -> None:
        policy = scenario.policy
        if not policy.priority_preemption:
            preset = replace(preset, slot_preemption=SlotPreemption.NEVER)
        self.trace: list[Row] = []
        self._policy = policy
        self._budget = None if preset.prefill is PrefillRule.WHOLE else policy.token_budget
        self._scheduler = Scheduler(_limits(policy), preset, progress=preset.progress)
        self._worker = _IdealWorker()
        self._queue: deque[SequenceSpec] = deque()
        self._specs: dict[str, SequenceSpec] = {}
        self._requests = {request.id: RequestSummary() for request in scenario.requests}
        self._arrivals: dict[int, list[Request]] = {}
        for request in scenario.requests:
            self._arrivals.setdefault(request.arrival, []).append(request)
        self._num_open = len(scenario.requests)
        self._log = log
        if log is not None:
            log.open({DRIVER: self._scheduler}, _doorway(policy))

    def is_over(self) -> bool:
        """Whether every request is completed or rejected."""
        return self._num_open == 0

    def iterate(self, iteration: int) -> None:
        row = Row(iteration=iteration, unused_budget=self._budget)
        for request in self._arrivals.pop(iteration, ()):
            self._offer(_spec(request), row)
        self._promote(iteration)
        step = self._scheduler.step((), iteration)
        if self._log is not None:
            self._log.stepped(iteration, step)
        if step.plan is not None:
            self._execute(step.plan, row)
        row.queue = [spec.sequence_id for spec in self._queue]
        row.active = list(self._scheduler.running_ids())
        self.trace.append(row)

    def close(self) -> None:
        """End the log with the step that takes in the last report."""
        if self._log is not None:
            now = len(self.trace)
            self._log.stepped(now, self._scheduler.step((), now))
            self._log.close(now)

    def summaries(self) -> dict[str, RequestSummary]:
        for sequence_id in self._scheduler.running_ids():
            self._requests[sequence_id].result = Result.ACTIVE
        return self._requests

    def _offer(self, spec: SequenceSpec, row: Row) -> None:
        """A free slot, else a worse sequence's slot if the queue has room for it, else the queue, else rejection."""
        self._specs[spec.sequence_id] = spec
        want = self._scheduler.want()
        has_room = len(self._queue) < self._policy.max_queue
        if want.slots > 0:
            self._tell_offer(spec, Offered.HANDED, row)
            self._take(Claimed(sequence=spec), row.iteration)
        elif has_room and want.weakest is not None and spec.rank < want.weakest.rank:
            victim_id = want.weakest.sequence_id
            self._tell_offer(spec, Offered.HANDED, row)
            self._queue.appendleft(self._specs[victim_id])
            self._take(Exchanged(sequence=spec, victim_id=victim_id), row.iteration)
            self._requests[victim_id].preemptions += 1
            row.preempted.append(victim_id)
        elif has_room:
            self._queue.append(spec)
            self._tell_offer(spec, Offered.QUEUED, row)
        else:
            self._tell_offer(spec, Offered.QUEUE_FULL, row)
            self._requests[spec.sequence_id].result = Result.REJECTED
            self._num_open -= 1
            row.rejected.append(spec.sequence_id)

    def _promote(self, iteration: int) -> None:
        while self._queue and self._scheduler.want().slots > 0:
            self._take(Claimed(sequence=self._queue.popleft()), iteration)

    def _take(self, event: Claimed | Exchanged | Reported, iteration: int) -> None:
        self._scheduler.take(event, iteration)
        if self._log is None:
            return
        self._log.took(event)
        if isinstance(event, Claimed):
            self._log.given(iteration, [(event.sequence.sequence_id, None)])
        elif isinstance(event, Exchanged):
            self._log.given(iteration, [(event.sequence.sequence_id, event.victim_id)])

    def _tell_offer(self, spec: SequenceSpec, outcome: Offered, row: Row) -> None:
        if self._log is not None:
            waiting = len(self._queue)
            ahead = waiting - 1 if outcome is Offered.QUEUED else 0
            self._log.offered(row.iteration, spec, _standing(spec), outcome, ahead=ahead, waiting=(waiting, 0))

    def _execute(self, plan: Plan, row: Row) -> None:
        worker = self._worker
        worker.apply(plan, self._specs)
        row.decode = [worker.sequence_id(slot) for slot in plan.decode]
        row.prefill = [(worker.sequence_id(span.slot), span.length) for span in plan.prefill]
        row.prefill_emitted = [worker.sequence_id(span.slot) for span in plan.prefill if span.emits]
        if row.unused_budget is not None:
            row.unused_budget -= len(plan.decode) + sum(span.length for span in plan.prefill)
        report = worker.run(plan)
        row.completed = [worker.sequence_id(finished.slot) for finished in report.finished]
        for sequence_id in row.prefill_emitted:
            summary = self._requests[sequence_id]
            if summary.first_output is None:
                summary.first_output = row.iteration
        for sequence_id in row.completed:
            self._requests[sequence_id].completed = row.iteration
            self._requests[sequence_id].result = Result.COMPLETED
        self._num_open -= len(row.completed)
        if self._log is not None:
            num_tokens = len(plan.decode) + len(row.prefill_emitted)
            self._log.executed(row.iteration + 1, plan.step, took_us=1, num_tokens=num_tokens)
        self._take(report, row.iteration)


class _IdealWorker:
    """Executes each plan at once. It keeps what it holds in the order of starts, and the output left of each."""

    def __init__(self) -> None:
        self._held: dict[int, str] = {}
        self._output_left: dict[str, int] = {}

    def sequence_id(self, slot: int) -> str:
        return self._held[slot]

    def apply(self, plan: Plan, specs: Mapping[str, SequenceSpec]) -> None:
        for slot in plan.frees:
            del self._held[slot]
        for start in plan.starts:
            self._held[start.slot] = start.sequence_id
            self._output_left.setdefault(start.sequence_id, specs[start.sequence_id].max_tokens)

    def run(self, plan: Plan) -> Reported:
        """Emit what the plan says. The report lists what finished in the order of starts."""
        emitting = [*plan.decode, *(span.slot for span in plan.prefill if span.emits)]
        for slot in emitting:
            self._output_left[self._held[slot]] -= 1
        return Reported(
            step=plan.step,
            finished=tuple(
                Finished(slot=slot, reason=FinishReason.LENGTH)
                for slot, sequence_id in self._held.items()
                if slot in emitting and self._output_left[sequence_id] == 0
            ),
        )


def _limits(policy: Policy) -> Limits:
    """The limits of a scenario: memory is not limited, one plan in flight."""
    return Limits(max_slots=policy.max_active, token_budget=policy.token_budget, prefill_chunk=policy.prefill_chunk)


def _doorway(policy: Policy) -> Doorway:
    return Doorway(
        classes=tuple(
            [
                PriorityClass(name=name.value, rank=rank, head_start_us=0, service_tier="")
                for name, rank in RANKS.items()
            ]
        ),
        bounds=QueueBounds(max_requests=policy.max_queue),
        waiting_order=WaitingOrderName.FCFS,
        unit=TimeUnit.ITERATIONS,
    )


def _standing(spec: SequenceSpec) -> Standing:
    return Standing(scored_by=HeadStart(us=0), lane=spec.class_name)


def _spec(request: Request) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=request.id,
        class_name=request.priority.value,
        rank=RANKS[request.priority],
        score=request.arrival,
        arrival_us=request.arrival,
        prompt_tokens=request.prompt,
        max_tokens=request.output,
        expected_tokens=request.output,
    )
