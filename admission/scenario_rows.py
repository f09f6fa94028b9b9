"""The rows of a simulated scenario as those of a trace, so that one summary serves both.

A scenario counts time in iterations. Here each of them, an idle one too, also takes what it costs under a cost model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from admission.classes import PriorityClass
from admission.cost import CostModel, Work
from admission.presets import PrefillRule, Preset, Progress
from admission.scenario import Request, Scenario
from admission.simulate import RANKS
from admission.summary import Summary, Tally
from admission.trace import Outcome, Result, Row
from admission.trace_csv import Arrival
from admission.trace_rows import Gap, Iteration, Rejection, RequestRecord


def summarize(scenario: Scenario, outcome: Outcome, preset: Preset, cost: CostModel) -> Summary:
    """The summary of a run of ``scenario`` under ``preset``."""
    rows = list(_Replay(scenario, preset, cost).rows(outcome.trace))
    tally = Tally(max_slots=scenario.policy.max_active, kv_blocks=None)
    for row in rows:
        tally.add(row)
    ends_us = [row.at_us + row.took_us for row in rows]
    return tally.summary([_record(request, outcome, ends_us) for request in scenario.requests])


class _Replay:
    """Follows every request through the rows: its prefill that is left, what it emitted, and when it last did."""

    def __init__(self, scenario: Scenario, preset: Preset, cost: CostModel) -> None:
        self._requests = {request.id: request for request in scenario.requests}
        self._preset = preset
        self._cost = cost
        self._left = {request.id: request.prompt for request in scenario.requests}
        self._emitted: Counter[str] = Counter()
        self._active: list[str] = []
        self._last: dict[str, tuple[int, int]] = {}  # the iteration of the newest token, and when that ended

    def rows(self, trace: tuple[Row, ...]) -> Iterator[Iteration]:
        now_us = 0
        for row in trace:
            took_us = self._cost.iteration_us(self._work(row))
            yield self._row(row, now_us, took_us)
            now_us += took_us

    def _work(self, row: Row) -> Work:
        if self._preset.progress is Progress.RECOMPUTE:
            for identifier in row.preempted:
                self._left[identifier] = self._known(identifier)
        for identifier, tokens in row.prefill:
            self._left[identifier] -= tokens
        return Work(
            decode_tokens=len(row.decode),
            prefill_tokens=sum(tokens for _, tokens in row.prefill),
            kv_tokens=sum(self._known(identifier) for identifier in row.decode)
            + sum(self._known(identifier) - self._left[identifier] for identifier, _ in row.prefill),
        )

    def _known(self, identifier: str) -> int:
        return self._requests[identifier].prompt + self._emitted[identifier]

    def _held_back(self, row: Row) -> int:
        """Sequences that were active before this row, ready to decode, and neither decode in it nor were preempted."""
        advancing = [*row.decode, *row.preempted, *(identifier for identifier, _ in row.prefill)]
        return sum(self._left[identifier] == 0 and identifier not in advancing for identifier in self._active)

    def _row(self, row: Row, at_us: int, took_us: int) -> Iteration:
        num_held_back = self._held_back(row)
        self._active = row.active
        emitting = [*row.decode, *row.prefill_emitted]
        gaps = [self._gap(identifier, row.iteration, at_us + took_us) for identifier in emitting]
        self._emitted.update(emitting)
        return Iteration(
            iteration=row.iteration,
            at_us=at_us,
            took_us=took_us,
            num_decode=len(row.decode),
            prefill=row.prefill,
            prefill_emitted=row.prefill_emitted,
            completed=row.completed,
            num_waiting=len(row.queue),
            peak_waiting=len(row.queue),
            slots=len(row.active) + len(row.completed),
            unused_budget=None if self._preset.prefill is PrefillRule.WHOLE else row.unused_budget,
            num_held_back=num_held_back,
            gaps=[gap for gap in gaps if gap is not None],
        )

    def _gap(self, identifier: str, iteration: int, ends_us: int) -> Gap | None:
        """The gap before this token; None before the first."""
        last = self._last.get(identifier)
        self._last[identifier] = (iteration, ends_us)
        if last is None:
            return None
        return Gap(self._requests[identifier].priority.value, iteration - last[0], ends_us - last[1], 1)


def _record(request: Request, outcome: Outcome, ends_us: list[int]) -> RequestRecord:
    fared = outcome.requests[request.id]
    rank = RANKS[request.priority]
    return RequestRecord(
        arrival=Arrival(
            request_id=request.id,
            arrival_us=ends_us[min(request.arrival, len(ends_us)) - 1] if request.arrival > 0 else 0,
            prompt_tokens=request.prompt,
            output_tokens=request.output,
            cls=PriorityClass(name=request.priority.value, rank=rank, head_start_us=0, service_tier=""),
        ),
        arrived_in=request.arrival,
        result=fared.result,
        rejection=Rejection.QUEUE_FULL if fared.result is Result.REJECTED else None,
        first_output=fared.first_output,
        first_output_us=None if fared.first_output is None else ends_us[fared.first_output],
        completed=fared.completed,
        completed_us=None if fared.completed is None else ends_us[fared.completed],
        slot_preemptions=fared.preemptions,
    )
