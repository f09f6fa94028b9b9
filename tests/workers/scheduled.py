"""The real scheduler driving the real engine, two plans deep, with a store that gives back at once what was paused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from admission.events import Claimed, EndReason, Event, Finished, FinishReason, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import preset
from admission.scheduler import Scheduler
from gateway.prefix_hashes import block_hashes
from gateway.sequence_records import SequenceRecord, plan_message
from tests.workers.engine_support import Request
from workers.engine import Engine
from workers.wire import Job, ReportMessage


class ScheduledRun:
    """Claims requests at random moments and runs them to their end."""

    def __init__(self, engine: Engine, random: Random, *, preset_name: str, limits: Limits) -> None:
        self._engine = engine
        self._random = random
        self._scheduler = Scheduler(limits, preset(preset_name))
        self._specs: dict[str, SequenceSpec] = {}
        self._records: dict[str, SequenceRecord] = {}
        self._slots: dict[int, SequenceRecord] = {}
        self._reports: deque[ReportMessage] = deque()
        self._now = 0
        self.pauses = 0
        self.reused_tokens = 0

    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """The output of each request. Every report is checked by the scheduler against its ledger."""
        size = self._engine.block_size
        waiting = deque(_spec(number, request, size) for number, request in enumerate(requests))
        self._specs = {spec.sequence_id: spec for spec in waiting}
        self._records = {f"s{number}": SequenceRecord(job=_job(number, r)) for number, r in enumerate(requests)}
        left = len(requests)
        while left:
            events: list[Event] = []
            while waiting and self._random.random() < 0.5:
                events.append(Claimed(sequence=waiting.popleft()))
            if self._reports and (len(self._reports) == 2 or self._random.random() < 0.6):
                events.append(self._take(self._reports.popleft()))
            left -= self._step(events)
        while self._reports:
            self._step([self._take(self._reports.popleft())])
        self._scheduler.check()
        return [record.output for record in self._records.values()]

    def _step(self, events: list[Event]) -> int:
        """How many sequences ended."""
        ended = 0
        while True:
            self._now += 1000
            step = self._scheduler.step(events, self._now)
            assert {end.reason for end in step.ended} <= {EndReason.LENGTH, EndReason.STOP}
            ended += len(step.ended)
            if step.plan is not None:
                for start in step.plan.starts:
                    self.reused_tokens += start.computed_tokens
                    self._slots[start.slot] = self._records[start.sequence_id]
                self._reports.append(self._engine.execute(plan_message(step.plan, epoch=1, records=self._records)))
            events = []
            for paused in step.paused:
                self.pauses += 1
                events.append(Claimed(sequence=self._specs[paused.sequence_id]))
            if step.plan is None and not events:
                return ended

    def _take(self, report: ReportMessage) -> Reported:
        for slot, token in report.tokens:
            self._slots[slot].output.append(token)
        finished = tuple(Finished(slot=slot, reason=FinishReason(reason)) for slot, reason in report.finished)
        return Reported(step=report.step, finished=finished, live_blocks=report.live_blocks)


def _spec(number: int, request: Request, block_size: int) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=f"s{number}",
        class_name="standard",
        rank=number % 2,
        score=number,
        arrival_us=number,
        prompt_tokens=len(request.tokens),
        max_tokens=request.max_tokens,
        expected_tokens=1,
        block_hashes=block_hashes(request.tokens, block_size=block_size, tenant=""),
    )


def _job(number: int, request: Request) -> Job:
    return Job(
        sequence_id=f"s{number}",
        origin="",
        class_name="standard",
        rank=number % 2,
        prompt_ids=request.tokens,
        emitted_ids=(),
        max_tokens=request.max_tokens,
        expected_tokens=1,
        sampling=request.sampling,
        deadline_us=None,
    )
