"""The story of a driver, put together from its log.

The log says what was decided; that a sequence decoded in some plan follows from its slot. So the story is told by
following slots from start to free, and the scheduler is replayed beside it for what it knew at that moment: the memory
in use, and which limit kept the claimed from starting. Where steps were not recorded, the story has a gap: it goes on
with what the next segment says is there.

Plans are made before the last ones are reported. What was planned for a sequence after the iteration in which it
ended, or was on its way to a worker that was lost, never ran: when that turns out, it is taken out of its life again.

A story takes the memory of its log and as much again: for long logs read a segment or two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from admission.events import (
    Cancelled,
    Claimed,
    Event,
    Exchanged,
    LimitsChanged,
    PauseReason,
    Plan,
    Reported,
    SequenceSpec,
    Step,
    Want,
    WorkerLost,
)
from admission.presets import Batching
from admission.record.entries import Closed, Executed, LogEntry, Opened, Stepped, TimeUnit
from admission.record.snapshot import thaw
from admission.record.story import Beat, Begin, Claim, End, Gap, Hold, Life, Part, Pause, Room, Run, Story
from admission.scheduler import Scheduler


class NoStory(Exception):
    """There is no beginning to tell it from."""


def tell(entries: Iterable[LogEntry], *, offset_us: int = 0) -> Story:
    """The story of one driver's log, of one segment or of several in order.

    Raises ``NoStory``, and ``SnapshotError`` for a log of another version.
    """
    teller: _Teller | None = None
    for entry in entries:
        if teller is None:
            teller = _Teller(entry, offset_us) if isinstance(entry, Opened) else None
            continue
        match entry:
            case Opened():
                teller.open(entry)
            case Stepped():
                teller.step(entry)
            case Executed():
                teller.execute(entry)
            case Closed():
                teller.close(entry)
    if teller is None:
        raise NoStory("this log has no beginning")
    return teller.story


class _Teller:
    """Follows one scheduler, and after a gap in the log the one that was there then."""

    def __init__(self, opened: Opened, offset_us: int) -> None:
        limits = opened.limits
        self._segment, self._ended, self._now_us = opened.segment, False, opened.opened_us
        self.story = Story(
            driver_id=opened.driver_id,
            model=opened.model,
            preset=opened.preset,
            offset_us=offset_us,
            unit=opened.unit,
            began_us=opened.opened_us,
            until_us=opened.opened_us,
            max_slots=limits.max_slots,
            kv_total=limits.kv_blocks,
            token_budget=limits.token_budget,
        )
        self._begin(opened)

    def open(self, opened: Opened) -> None:
        """The next segment: it goes on where the one before ended, or there is a gap."""
        follows = opened.is_whole and self._ended and opened.segment == self._segment + 1
        self._segment, self._ended = opened.segment, False
        if follows:
            return
        gap = Gap(from_us=self._now_us, to_us=opened.opened_us, iteration=self._last_iteration())
        self.story.gaps.append(gap)
        for life in self.story.lives.values():
            if life.end is None and not life.is_paused:
                life.missed.append(gap)
        self._begin(opened)

    def _begin(self, opened: Opened) -> None:
        self._scheduler = thaw(opened.state)
        self._now_us = opened.opened_us
        self._previous: Beat | None = None
        self._in_flight: dict[int, Beat] = {}
        self._planned: dict[int, list[_Share]] = {}  # by plan, until it is reported
        for spec in self._scheduler.known():
            self._life(spec, found_us=opened.opened_us)
        self._held = {slot: self._life(spec, found_us=opened.opened_us) for slot, spec in self._scheduler.held()}

    def close(self, closed: Closed) -> None:
        """The segment is whole; with the last one the driver has stopped."""
        self._ended = True
        if closed.is_last:
            self.story.stopped_us = self._now_us
            self._never_ran(None)

    def step(self, stepped: Stepped) -> None:
        now_us, step = stepped.now_us, stepped.step
        self._now_us = self.story.until_us = now_us
        iteration = self._next_iteration(now_us, step)
        displaced = [self._displaced(event, now_us, iteration) for event in stepped.events]
        claimed = [self._take(event, now_us) for event in stepped.events]
        self._scheduler.step(stepped.events, now_us)
        for victim, pause in [each for each in displaced if each is not None]:
            if self._scheduler.is_paused(victim.spec.sequence_id):  # else it had ended, or was about to
                victim.pauses.append(pause)
        for paused in step.paused:
            self.story.lives[paused.sequence_id].pauses.append(
                Pause(at_us=now_us, iteration=iteration, reason=paused.reason, by=None)
            )
        if step.plan is not None:
            self._plan(step.plan, now_us, iteration)
        self._tell_claims([life for life in claimed if life is not None], step, now_us, iteration)
        for ended in step.ended:
            life = self.story.lives.get(ended.sequence_id)
            if life is not None:
                life.end = End(at_us=now_us, iteration=iteration, reason=ended.reason)
        self._tell_room(step.want, now_us)

    def execute(self, executed: Executed) -> None:
        beat = self._in_flight.pop(executed.step, None)
        if beat is not None:
            beat.begins_us, beat.ends_us = executed.now_us - executed.busy_us, executed.now_us

    def _next_iteration(self, now_us: int, step: Step) -> int:
        if self.story.unit is TimeUnit.ITERATIONS:
            return now_us
        if step.plan is not None:
            return step.plan.step
        return self._last_iteration() + 1

    def _last_iteration(self) -> int:
        return self.story.beats[-1].iteration if self.story.beats else -1

    def _displaced(self, event: Event, now_us: int, iteration: int) -> tuple[Life, Pause] | None:
        """Whose place a newcomer takes, if the event says so."""
        victim = self.story.lives.get(event.victim_id) if isinstance(event, Exchanged) else None
        if not isinstance(event, Exchanged) or victim is None:
            return None
        is_full = self._scheduler.slots_in_use >= self._scheduler.limits.max_slots
        reason = PauseReason.SLOT if is_full else PauseReason.KV
        return victim, Pause(at_us=now_us, iteration=iteration, reason=reason, by=event.sequence.sequence_id)

    def _take(self, event: Event, now_us: int) -> Life | None:
        """The life of a sequence that was claimed, if the event says so."""
        match event:
            case Claimed(sequence=spec) | Exchanged(sequence=spec):
                return self._life(spec)
            case Cancelled(sequence_id=sequence_id):
                life = self.story.lives.get(sequence_id)
                if life is not None and life.cancelled_us is None:
                    life.cancelled_us = now_us
            case LimitsChanged(limits=limits):
                self.story.max_slots = max(self.story.max_slots, limits.max_slots)
                self.story.token_budget = limits.token_budget
            case Reported(step=step, finished=finished):
                ended = {each.slot for each in finished}
                for share in self._planned.pop(step, ()):
                    if share.run.slot in ended:
                        self._never_ran(share.life)
            case WorkerLost():
                self._never_ran(None)
                self._held.clear()
                self._in_flight.clear()
                self._previous = None
        return None

    def _life(self, spec: SequenceSpec, *, found_us: int | None = None) -> Life:
        life = self.story.lives.get(spec.sequence_id)
        if life is None:
            life = self.story.lives[spec.sequence_id] = Life(spec=spec, found_us=found_us)
        return life

    def _never_ran(self, life: Life | None) -> None:
        """What is planned and not yet reported, for ``life`` or (None) for everybody, comes to nothing."""
        for step in sorted(self._planned, reverse=True):
            for share in self._planned[step]:
                if life is None or share.life is life:
                    share.take_back(self.story.beats)
            self._planned[step] = [
                share for share in self._planned[step] if life is not None and share.life is not life
            ]

    def _plan(self, plan: Plan, now_us: int, iteration: int) -> None:
        beat = self._beat(plan, now_us, iteration)
        for slot in plan.frees:
            self._held.pop(slot, None)
        for start in plan.starts:
            life = self._held[start.slot] = self.story.lives[start.sequence_id]
            life.begins.append(
                Begin(beat=beat, slot=start.slot, kept=start.computed_tokens, swapped=start.swapped_tokens)
            )
        self._planned[plan.step] = [
            *[self._ran(slot, Part.DECODE, beat, tokens=1) for slot in plan.decode],
            *[self._ran(span.slot, Part.PREFILL, beat, tokens=span.length, emits=span.emits) for span in plan.prefill],
        ]
        if plan.decode or plan.prefill:
            self.story.beats.append(beat)
            self._previous = beat
        self._in_flight[plan.step] = beat

    def _beat(self, plan: Plan, now_us: int, iteration: int) -> Beat:
        budget = self.story.token_budget
        used = len(plan.decode) + sum(span.length for span in plan.prefill)
        return Beat(
            number=len(self.story.beats),
            iteration=iteration,
            plan=plan,
            planned_us=now_us,
            num_claimed=self._scheduler.num_claimed,
            slots=self._scheduler.slots_in_use,
            kv_blocks=self._scheduler.kv_blocks_in_use,
            unused_budget=None if budget is None else budget - used,
        )

    def _ran(self, slot: int, part: Part, beat: Beat, *, tokens: int, emits: bool = False) -> _Share:
        life = self._held[slot]
        last = life.runs[-1] if life.runs else None
        follows = last is not None and last.last is self._previous
        if last is not None and follows and last.part is part and last.slot == slot and not last.emits:
            last.last = beat
            last.tokens += tokens
            last.emits = emits
        else:
            last = Run(part=part, slot=slot, first=beat, last=beat, tokens=tokens, emits=emits)
            life.runs.append(last)
        return _Share(life=life, run=last, tokens=tokens)

    def _tell_claims(self, lives: list[Life], step: Step, now_us: int, iteration: int) -> None:
        started = {start.sequence_id for start in step.plan.starts} if step.plan is not None else set()
        for life in lives:
            held_by = None if life.spec.sequence_id in started else _held_up(self._scheduler)
            if held_by is Hold.ORDER and step.plan is None:
                held_by = None  # enough plans were in flight: it is nobody's turn
            life.claims.append(Claim(at_us=now_us, iteration=iteration, held_by=held_by))

    def _tell_room(self, want: Want, now_us: int) -> None:
        held_by = None if want.slots > 0 else _held_by(self._scheduler)
        room = Room(at_us=now_us, held_by=held_by, kv_tokens=want.kv_tokens)
        last = self.story.rooms[-1] if self.story.rooms else None
        if last is None or (last.held_by, last.kv_tokens) != (held_by, want.kv_tokens):
            self.story.rooms.append(room)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one plan adds to a life: ``tokens`` at the end of ``run``."""

    life: Life
    run: Run
    tokens: int

    def take_back(self, beats: Sequence[Beat]) -> None:
        """Undo it; what was added after it is undone already."""
        run = self.run
        if run.first is run.last:
            self.life.runs.pop()
            return
        run.last = beats[run.last.number - 1]  # a run is in every iteration from its first to its last
        run.tokens -= self.tokens
        run.emits = False


def _held_by(scheduler: Scheduler) -> Hold:
    """What keeps a scheduler from taking more."""
    if scheduler.slots_in_use + scheduler.num_claimed >= scheduler.limits.max_slots:
        return Hold.SLOTS
    return Hold.MEMORY if scheduler.preset.batching is Batching.CONTINUOUS else Hold.ORDER


def _held_up(scheduler: Scheduler) -> Hold:
    """What keeps a claimed sequence from starting: no slot, no memory, or another that goes first."""
    if scheduler.slots_in_use >= scheduler.limits.max_slots:
        return Hold.SLOTS
    kv_tokens = scheduler.want().kv_tokens
    return Hold.MEMORY if kv_tokens is not None and kv_tokens <= 0 else Hold.ORDER
