"""Many short requests of all kinds through one worker, planned by the real scheduler two plans deep."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from admission.events import Claimed, Event, Finished, FinishReason, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import preset
from admission.scheduler import Scheduler
from gateway.sequence_records import SequenceRecord, plan_message
from tests.workers.gateway_end import GatewayEnd
from workers.wire import Hello, Job, ReportMessage, Sampling

LONGEST_PROMPT, LONGEST_OUTPUT = 24, 12


class ShortRequests:
    """Keeps a worker full. Preempted sequences come back at once; what has ended is forgotten here, too."""

    def __init__(self, end: GatewayEnd, hello: Hello, random: Random) -> None:
        self._end = end
        self._random = random
        self._vocab_size = hello.card.vocab_size
        limits = Limits(
            max_slots=hello.max_slots,
            token_budget=64,
            prefill_chunk=16,
            kv_blocks=hello.kv_blocks,
            block_size=hello.block_size,
            host_blocks=hello.host_blocks,
            max_in_flight=2,
        )
        self._scheduler = Scheduler(limits, preset("vllm-v1"))
        self._records: dict[str, SequenceRecord] = {}
        self._slots: dict[int, SequenceRecord] = {}
        self._now = 0
        self.pauses = 0

    def run(self, number: int) -> Iterator[ReportMessage]:
        """So many requests to their end; every report on the way."""
        waiting = [self._job(index) for index in range(number)]
        events: list[Event] = []
        while waiting or self._records:
            room = self._step(events)
            events = [self._claim(waiting.pop()) for _ in range(min(room, len(waiting)))]
            if not events and self._records:
                report = self._end.receive(ReportMessage)
                yield report
                events = [self._take(report)]

    def _step(self, events: list[Event]) -> int:
        """Send what there is to send; how many more are wanted."""
        while True:
            self._now += 1
            step = self._scheduler.step(events, self._now)
            if step.plan is not None:
                for start in step.plan.starts:
                    self._slots[start.slot] = self._records[start.sequence_id]
                self._end.send(plan_message(step.plan, epoch=1, records=self._records))
            events = [Claimed(sequence=_spec(self._records[paused.sequence_id].job)) for paused in step.paused]
            self.pauses += len(events)
            for ended in step.ended:
                del self._records[ended.sequence_id]
            if step.plan is None and not events:
                return step.want.slots

    def _claim(self, job: Job) -> Claimed:
        self._records[job.sequence_id] = SequenceRecord.of(job)
        return Claimed(sequence=_spec(job))

    def _take(self, report: ReportMessage) -> Reported:
        for slot, token in report.tokens:
            self._slots[slot].output.append(token)
        finished = tuple(Finished(slot=slot, reason=FinishReason(reason)) for slot, reason in report.finished)
        return Reported(
            step=report.step, finished=finished, live_blocks=report.live_blocks, host_blocks=report.host_blocks
        )

    def _job(self, index: int) -> Job:
        random = self._random
        return Job(
            sequence_id=f"request {index}",
            origin="",
            class_name="standard",
            rank=1,
            prompt_ids=tuple(random.randrange(2, self._vocab_size) for _ in range(random.randint(1, LONGEST_PROMPT))),
            emitted_ids=(),
            max_tokens=random.randint(1, LONGEST_OUTPUT),
            expected_tokens=1,
            sampling=random.choice((_GREEDY, _RICH, _SCORED)),
            deadline_us=None,
        )


_GREEDY = Sampling(temperature=0.0)
_RICH = Sampling(temperature=1.0, top_p=0.9, top_k=20, repetition_penalty=1.2, logit_bias=((5, 1.0),), min_tokens=2)
_SCORED = Sampling(temperature=0.7, top_logprobs=2, prompt_logprobs=1)


def _spec(job: Job) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=job.sequence_id,
        class_name=job.class_name,
        rank=job.rank,
        score=0,
        arrival_us=0,
        prompt_tokens=len(job.prompt_ids),
        max_tokens=job.max_tokens,
        expected_tokens=job.expected_tokens,
    )
