"""A driver's log in memory: a scheduler with an ideal worker behind it, recorded as a gateway records it."""

from __future__ import annotations

from dataclasses import dataclass, field

from admission.events import Cancelled, Claimed, Event, Finished, FinishReason, Reported
from admission.limits import Limits
from admission.presets import PRESETS, Progress
from admission.record.entries import Closed, Executed, LogEntry, Opened, Stepped
from admission.record.framing import FrameWriter
from admission.record.snapshot import freeze
from admission.scheduler import Scheduler
from tests.admission.drive import make_spec

LIMITS = Limits(max_slots=3, token_budget=8, prefill_chunk=4, kv_blocks=9, block_size=4, max_in_flight=2)


@dataclass
class Recording:
    """``segments`` has the records of each; ``rotate`` begins another. Sequences stop by themselves at times."""

    limits: Limits = LIMITS
    segments: list[list[LogEntry]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, PRESETS["sluicegate"])
        self.now = 0
        self.in_flight: list[int] = []
        self.rotate()

    def rotate(self, *, is_whole: bool = True) -> None:
        if self.segments and is_whole:
            self._close(is_last=False)
        self.segments.append([self._opened(is_whole=is_whole)])

    def end(self) -> list[bytes]:
        """The bytes of every segment."""
        self._close(is_last=True)
        return [as_bytes(segment) for segment in self.segments]

    def step(self, *events: Event) -> None:
        self.now += 10
        while True:
            step = self.scheduler.step(events, self.now)
            self.segments[-1].append(Stepped(now_us=self.now, events=events, step=step))
            if step.plan is None:
                return
            self.in_flight.append(step.plan.step)
            events = ()

    def claim(self, sequence_id: str, **shape: int) -> None:
        self.step(Claimed(sequence=make_spec(sequence_id, **shape)))

    def cancel(self, sequence_id: str) -> None:
        self.step(Cancelled(sequence_id=sequence_id))

    def report(self, *stopped: int) -> None:
        """The worker has executed its oldest plan; the sequences in these slots stopped."""
        plan = self.in_flight.pop(0)
        self.segments[-1].append(Executed(now_us=self.now, step=plan, busy_us=7, idle_us=1, num_tokens=1))
        finished = tuple(Finished(slot=slot, reason=FinishReason.STOP) for slot in stopped)
        self.step(Reported(step=plan, finished=finished))

    def run_for(self, reports: int) -> None:
        for _ in range(reports):
            self.report()

    def run(self) -> None:
        """Until nothing is in flight."""
        while self.in_flight:
            self.report()

    def _opened(self, *, is_whole: bool) -> Opened:
        return Opened(
            gateway_id="g0",
            driver_id="g0/w0/1",
            model="tiny",
            segment=len(self.segments),
            is_whole=is_whole,
            opened_us=self.now,
            opened_unix_us=1_000_000 + self.now,
            preset="sluicegate",
            progress=Progress.RECOMPUTE,
            limits=self.limits,
            context_length=64,
            state=freeze(self.scheduler),
        )

    def _close(self, *, is_last: bool) -> None:
        records = self.segments[-1]
        records.append(Closed(now_us=self.now, num_records=len(records), is_last=is_last))


def as_bytes(entries: list[LogEntry]) -> bytes:
    frames = FrameWriter()
    return frames.start() + b"".join([frames.frame(entry) for entry in entries])


def busy_recording() -> Recording:
    """Some twenty sequences with preemptions, cancels and early stops, over three segments."""
    recording = Recording()
    for number in range(21):
        recording.claim(f"s{number}", prompt=3 + number % 6, output=4 + number % 5, rank=number % 3, score=number)
        if number % 4 == 1:
            recording.cancel(f"s{number - 1}")
        if recording.in_flight:
            recording.report()
        if number in {7, 14}:
            recording.rotate()
    recording.run()
    return recording
