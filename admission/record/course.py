"""What a driver's log comes to in numbers: what every iteration did and took, and when every token was there.

The log says what was planned and when each report came. Whose tokens a plan gives follows from who holds its slots.
A worker that has found the end of a sequence does nothing more for it in plans that were on their way already, so work
and tokens are counted when the report of a plan is taken in, and what had finished by then is left out of both.

The time that an iteration *took* is the time from when it could begin to its report: from the report before, when the
plan was on the worker by then (the next one computes while the last report travels), else from when it was planned.
What lies between two iterations, the worker's wait for bytes and the gateway's for its turn, is therefore in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from admission.cost import Work
from admission.events import (
    Cancelled,
    Claimed,
    EndReason,
    Event,
    Exchanged,
    Plan,
    Reported,
    SequenceSpec,
)
from admission.record.entries import Closed, Executed, LogEntry, Opened, Stepped
from admission.record.snapshot import thaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An iteration: its work, and how long it took until ``ends_us``. ``idle_us`` of that the worker had waited."""

    step: int
    work: Work
    took_us: int
    ends_us: int
    busy_us: int
    idle_us: int


@dataclass(slots=True, kw_only=True)
class Path:
    """One sequence at a driver. ``tokens_us``: when each of its tokens was there, an eos included.

    ``known`` counts the tokens that its next decode attends to; None as long as it is not seen in the log.
    """

    spec: SequenceSpec
    tokens_us: list[int] = field(default_factory=list)
    slot_preemptions: int = 0
    kv_preemptions: int = 0
    end: EndReason | None = None
    is_partial: bool = False
    known: int | None = None
    has_finished: bool = False
    is_cancelled: bool = False


@dataclass(slots=True, kw_only=True)
class Course:
    """``iterations`` in their order; ``num_unclear`` more had sequences in them of which the log has no beginning."""

    driver_id: str
    iterations: list[Timed] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)
    num_unclear: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A plan on the worker, with those that it names."""

    plan: Plan
    planned_us: int
    decode: tuple[Path, ...]
    prefill: tuple[Path, ...]


def follow(entries: Iterable[LogEntry], *, offset_us: int = 0) -> Course | None:
    """The course of one driver's log, in times that all logs share (``clocks``); None: it has no beginning.

    Raises ``SnapshotError`` for a log of another version.
    """
    follower: _Follower | None = None
    for entry in entries:
        if follower is None:
            follower = _Follower(entry, offset_us) if isinstance(entry, Opened) else None
            continue
        match entry:
            case Opened():
                follower.open(entry)
            case Stepped():
                follower.step(entry)
            case Executed():
                follower.executed[entry.step] = entry
            case Closed():
                follower.has_closed = True
    return None if follower is None else follower.course


class _Follower:
    """Follows one scheduler, and after a gap in the log the one that was there then."""

    def __init__(self, opened: Opened, offset_us: int) -> None:
        self.course = Course(driver_id=opened.driver_id)
        self.has_closed = False
        self._offset_us = offset_us
        self._segment = opened.segment
        self._begin(opened)

    def open(self, opened: Opened) -> None:
        """The next segment: it goes on where the one before ended, or there is a gap."""
        follows = self.has_closed and opened.is_whole and opened.segment == self._segment + 1
        self._segment, self.has_closed = opened.segment, False
        if not follows:
            for path in self.course.paths.values():
                path.known = None
            self._begin(opened)

    def _begin(self, opened: Opened) -> None:
        self.executed: dict[int, Executed] = {}
        self._sent: dict[int, _Sent] = {}
        self._reported_us = 0  # as the log counts, like all times until they are given out
        scheduler = thaw(opened.state)
        for spec in scheduler.known():
            self._path(spec, is_partial=True)
        self._held = {slot: self._path(spec, is_partial=True) for slot, spec in scheduler.held()}

    def step(self, stepped: Stepped) -> None:
        for event in stepped.events:
            self._take(event)
        for paused in stepped.step.paused:
            if (path := self.course.paths.get(paused.sequence_id)) is not None:
                path.kv_preemptions += 1
        if stepped.step.plan is not None:
            self._plan(stepped.step.plan, stepped.now_us)
        for ended in stepped.step.ended:
            if (path := self.course.paths.get(ended.sequence_id)) is not None:
                path.end = ended.reason

    def _take(self, event: Event) -> None:
        match event:
            case Claimed(sequence=spec):
                self._path(spec)
            case Exchanged(sequence=spec, victim_id=victim_id):
                self._path(spec)
                if (victim := self.course.paths.get(victim_id)) is not None:
                    victim.slot_preemptions += 1
            case Cancelled(sequence_id=sequence_id):
                if (path := self.course.paths.get(sequence_id)) is not None:
                    path.is_cancelled = True
            case Reported():
                self._report(event)

    def _path(self, spec: SequenceSpec, *, is_partial: bool = False) -> Path:
        path = self.course.paths.get(spec.sequence_id)
        if path is None:
            path = self.course.paths[spec.sequence_id] = Path(spec=spec, is_partial=is_partial)
        return path

    def _plan(self, plan: Plan, now_us: int) -> None:
        for slot in plan.frees:
            self._held.pop(slot, None)
        for start in plan.starts:
            self._held[start.slot] = self.course.paths[start.sequence_id]
        self._sent[plan.step] = _Sent(
            plan=plan,
            planned_us=now_us,
            decode=tuple([self._held[slot] for slot in plan.decode]),
            prefill=tuple([self._held[span.slot] for span in plan.prefill]),
        )

    def _report(self, report: Reported) -> None:
        sent, executed = self._sent.pop(report.step, None), self.executed.pop(report.step, None)
        if sent is None or executed is None:
            return
        took_us = executed.now_us - max(self._reported_us, sent.planned_us)
        self._reported_us = executed.now_us
        ends_us = executed.now_us + self._offset_us
        work = self._work(sent, ends_us)
        if work is None:
            self.course.num_unclear += 1
        elif work.decode_tokens or work.prefill_tokens:
            self.course.iterations.append(
                Timed(
                    step=report.step,
                    work=work,
                    took_us=max(0, took_us),
                    ends_us=ends_us,
                    busy_us=executed.busy_us,
                    idle_us=executed.idle_us,
                )
            )
        ended = {finished.slot for finished in report.finished}
        for slots, paths in (
            (sent.plan.decode, sent.decode),
            ([span.slot for span in sent.plan.prefill], sent.prefill),
        ):
            for slot, path in zip(slots, paths, strict=True):
                path.has_finished |= slot in ended

    def _work(self, sent: _Sent, ends_us: int) -> Work | None:
        """What was done for the sequences that had not finished, who each get their token; None: not known."""
        kv_tokens, is_clear, num_decode, num_prefill = 0, True, 0, 0
        for path in sent.decode:
            if path.has_finished:
                continue
            num_decode += 1
            if path.known is None:
                is_clear = False
            else:
                kv_tokens += path.known
                path.known += 1
            _emit(path, ends_us)
        for span, path in zip(sent.plan.prefill, sent.prefill, strict=True):
            if path.has_finished:
                continue
            num_prefill += span.length
            kv_tokens += span.start + span.length
            if span.emits:
                path.known = span.start + span.length + 1
                _emit(path, ends_us)
        swapped = sum([start.swapped_tokens for start in sent.plan.starts])
        if not is_clear:
            return None
        return Work(decode_tokens=num_decode, prefill_tokens=num_prefill, kv_tokens=kv_tokens, swapped_tokens=swapped)


def _emit(path: Path, ends_us: int) -> None:
    if not path.is_cancelled:
        path.tokens_us.append(ends_us)
