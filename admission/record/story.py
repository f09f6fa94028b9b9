"""What happened, put together from a driver's log: every iteration, and the life of every sequence through them.

The log says what was decided; that a sequence decoded in some plan follows from its slot. So the story is told by
following slots from start to free, and the scheduler is replayed beside it for what it knew at that moment: the memory
in use, and which limit kept the claimed from starting. An *iteration* is a plan that was executed; in the log of a
scenario it is named by its time, in all others by its number.

Where steps were not recorded, the story has a gap: it goes on with what the next segment says is there.

A story takes the memory of its log and as much again: for long logs read a segment or two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from admission.events import (
    Cancelled,
    Claimed,
    EndReason,
    Event,
    Exchanged,
    LimitsChanged,
    PauseReason,
    Plan,
    SequenceSpec,
    Step,
    Want,
    WorkerLost,
)
from admission.presets import Batching
from admission.record.entries import Closed, Executed, LogEntry, Opened, Stepped, TimeUnit
from admission.record.snapshot import thaw
from admission.scheduler import Scheduler


class Part(StrEnum):
    """What a sequence does in a plan."""

    PREFILL = "prefill"
    DECODE = "decode"


class Hold(StrEnum):
    """Which limit kept a sequence from running at that time. ORDER: it was not its turn, or the batch is held."""

    SLOTS = "slots"
    MEMORY = "memory"
    ORDER = "order"


@dataclass(slots=True, kw_only=True)
class Beat:
    """One iteration, the ``number``-th: when it was planned, when it ran (None: not known), and what was in it.

    ``kv_blocks`` and ``slots`` are in use once the plan is applied. ``unused_budget`` is None without a token budget.
    """

    number: int
    iteration: int
    plan: Plan
    planned_us: int
    begins_us: int | None = None
    ends_us: int | None = None
    num_claimed: int
    slots: int
    kv_blocks: int
    unused_budget: int | None

    @property
    def prefill_tokens(self) -> int:
        return sum(span.length for span in self.plan.prefill)


@dataclass(slots=True, kw_only=True)
class Run:
    """A sequence did the same in consecutive iterations ``first`` to ``last``, in ``slot``.

    ``tokens``: computed by PREFILL, emitted by DECODE. ``emits``: the last chunk gave a token, too.
    """

    part: Part
    slot: int
    first: Beat
    last: Beat
    tokens: int
    emits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """It got a slot in ``beat``: ``kept`` tokens were in memory already, ``swapped`` of them copied back."""

    beat: Beat
    slot: int
    kept: int
    swapped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """It was preempted at ``at_us`` before ``iteration``: for a slot ``by`` another sequence, or for want of memory."""

    at_us: int
    iteration: int
    reason: PauseReason
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The queue gave it to this driver. ``held_by``: why it did not start in that same step, if so."""

    at_us: int
    iteration: int
    held_by: Hold | None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The scheduler let it go."""

    at_us: int
    iteration: int
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """From ``from_us`` to ``to_us`` steps were not recorded; ``iteration`` is the last one before it."""

    from_us: int
    to_us: int
    iteration: int


@dataclass(slots=True, kw_only=True)
class Life:
    """One sequence at this driver. ``found_us``: it was here when the log began, or when it went on after a gap.

    ``missed``: gaps in which it was here, or may have been.
    """

    spec: SequenceSpec
    found_us: int | None = None
    missed: list[Gap] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    begins: list[Begin] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    cancelled_us: int | None = None
    end: End | None = None

    @property
    def is_paused(self) -> bool:
        """Whether it was preempted and has not been given back to this driver since."""
        return bool(self.pauses) and (not self.claims or self.claims[-1].at_us < self.pauses[-1].at_us)


@dataclass(slots=True, kw_only=True)
class Story:
    """``lives`` are in the order in which the sequences came, ``beats`` in the order of the plans.

    ``offset_us`` makes its times those that all logs share (``clocks``). ``holds`` are the changes of what kept the
    driver from taking more from the queue, and when. ``stopped_us``: when the driver stopped, as far as the log tells.
    """

    driver_id: str
    model: str
    preset: str
    offset_us: int
    unit: TimeUnit
    began_us: int
    max_slots: int
    kv_total: int | None
    token_budget: int | None
    beats: list[Beat] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    holds: list[tuple[int, Hold | None]] = field(default_factory=list)
    stopped_us: int | None = None

    def was_there(self, at_us: int) -> bool:
        return self.began_us <= at_us and (self.stopped_us is None or at_us <= self.stopped_us)

    def hold_at(self, at_us: int) -> Hold | None:
        """What kept the driver from taking more at that time (its own)."""
        place = bisect_right(self.holds, at_us, key=lambda change: change[0])
        return self.holds[place - 1][1] if place else None


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
            if life.end is None:
                life.missed.append(gap)
        self._begin(opened)

    def _begin(self, opened: Opened) -> None:
        self._scheduler = thaw(opened.state)
        self._now_us = opened.opened_us
        self._previous: Beat | None = None
        self._in_flight: dict[int, Beat] = {}
        for spec in self._scheduler.known():
            self._life(spec, found_us=opened.opened_us)
        self._held = {slot: self._life(spec, found_us=opened.opened_us) for slot, spec in self._scheduler.held()}

    def close(self, closed: Closed) -> None:
        """The segment is whole; with the last one the driver has stopped."""
        self._ended = True
        if closed.is_last:
            self.story.stopped_us = self._now_us

    def step(self, stepped: Stepped) -> None:
        now_us, step = stepped.now_us, stepped.step
        self._now_us = now_us
        iteration = self._next_iteration(now_us, step)
        claimed = [self._take(event, now_us, iteration) for event in stepped.events]
        self._scheduler.step(stepped.events, now_us)
        for paused in step.paused:
            life = self.story.lives.get(paused.sequence_id)
            if life is not None:
                life.pauses.append(Pause(at_us=now_us, iteration=iteration, reason=paused.reason, by=None))
        if step.plan is not None:
            self._plan(step.plan, now_us, iteration)
        self._tell_claims([life for life in claimed if life is not None], step, now_us, iteration)
        for ended in step.ended:
            life = self.story.lives.get(ended.sequence_id)
            if life is not None:
                life.end = End(at_us=now_us, iteration=iteration, reason=ended.reason)
        self._tell_hold(step.want, now_us)

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

    def _take(self, event: Event, now_us: int, iteration: int) -> Life | None:
        """The life of a sequence that was claimed, if the event says so."""
        match event:
            case Claimed(sequence=spec):
                return self._life(spec)
            case Exchanged(sequence=spec, victim_id=victim_id):
                victim = self.story.lives.get(victim_id)
                if victim is not None:
                    is_full = self._scheduler.slots_in_use >= self._scheduler.limits.max_slots
                    reason = PauseReason.SLOT if is_full else PauseReason.KV
                    by = spec.sequence_id
                    victim.pauses.append(Pause(at_us=now_us, iteration=iteration, reason=reason, by=by))
                return self._life(spec)
            case Cancelled(sequence_id=sequence_id):
                life = self.story.lives.get(sequence_id)
                if life is not None and life.cancelled_us is None:
                    life.cancelled_us = now_us
            case LimitsChanged(limits=limits):
                self.story.max_slots = max(self.story.max_slots, limits.max_slots)
                self.story.token_budget = limits.token_budget
            case WorkerLost():
                self._held.clear()
                self._in_flight.clear()
                self._previous = None
        return None

    def _life(self, spec: SequenceSpec, *, found_us: int | None = None) -> Life:
        life = self.story.lives.get(spec.sequence_id)
        if life is None:
            life = self.story.lives[spec.sequence_id] = Life(spec=spec, found_us=found_us)
        return life

    def _plan(self, plan: Plan, now_us: int, iteration: int) -> None:
        beat = self._beat(plan, now_us, iteration)
        for slot in plan.frees:
            self._held.pop(slot, None)
        for start in plan.starts:
            life = self._held[start.slot] = self.story.lives[start.sequence_id]
            life.begins.append(
                Begin(beat=beat, slot=start.slot, kept=start.computed_tokens, swapped=start.swapped_tokens)
            )
        for slot in plan.decode:
            self._ran(slot, Part.DECODE, beat, tokens=1)
        for span in plan.prefill:
            self._ran(span.slot, Part.PREFILL, beat, tokens=span.length, emits=span.emits)
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

    def _ran(self, slot: int, part: Part, beat: Beat, *, tokens: int, emits: bool = False) -> None:
        life = self._held[slot]
        last = life.runs[-1] if life.runs else None
        follows = last is not None and last.last is self._previous
        if last is not None and follows and last.part is part and last.slot == slot and not last.emits:
            last.last = beat
            last.tokens += tokens
            last.emits = emits
        else:
            life.runs.append(Run(part=part, slot=slot, first=beat, last=beat, tokens=tokens, emits=emits))

    def _tell_claims(self, lives: list[Life], step: Step, now_us: int, iteration: int) -> None:
        started = {start.sequence_id for start in step.plan.starts} if step.plan is not None else set()
        for life in lives:
            held_by = None if life.spec.sequence_id in started else _held_up(self._scheduler)
            if held_by is Hold.ORDER and step.plan is None:
                held_by = None  # enough plans were in flight: it is nobody's turn
            life.claims.append(Claim(at_us=now_us, iteration=iteration, held_by=held_by))

    def _tell_hold(self, want: Want, now_us: int) -> None:
        hold = None if want.slots > 0 else _held_by(self._scheduler)
        if not self.story.holds or self.story.holds[-1][1] is not hold:
            self.story.holds.append((now_us, hold))


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
