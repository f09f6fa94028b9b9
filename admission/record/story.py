"""What happened, put together from a driver's log: every iteration, and the life of every sequence through them.

The log says what was decided; that a sequence decoded in some plan follows from its slot. So the story is told by
following slots from start to free, and the scheduler is replayed beside it for what it knew at that moment: the memory
in use, and which limit kept the claimed from starting. An *iteration* is a plan that was executed; in the log of a
scenario it is named by its time, in all others by its number.

A story takes the memory of its log and as much again: for long logs read a segment or two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from admission.events import Cancelled, Claimed, EndReason, Event, Exchanged, PauseReason, Plan, SequenceSpec, Step
from admission.record.entries import Executed, LogEntry, Opened, Stepped, TimeUnit
from admission.record.snapshot import thaw
from admission.scheduler import Scheduler


class Part(StrEnum):
    """What a sequence does in a plan."""

    PREFILL = "prefill"
    DECODE = "decode"


class Hold(StrEnum):
    """Which limit kept a sequence from running at that time."""

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


@dataclass(slots=True, kw_only=True)
class Life:
    """One sequence at this driver. ``is_partial``: it was here before the log begins."""

    spec: SequenceSpec
    is_partial: bool = False
    claims: list[Claim] = field(default_factory=list)
    begins: list[Begin] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    cancelled_us: int | None = None
    end: End | None = None


@dataclass(slots=True, kw_only=True)
class Story:
    """``lives`` are in the order in which the sequences came, ``beats`` in the order of the plans.

    ``offset_us`` makes its times those that all logs share (``clocks``).
    """

    driver_id: str
    model: str
    preset: str
    offset_us: int
    unit: TimeUnit
    max_slots: int
    kv_total: int | None
    token_budget: int | None
    beats: list[Beat] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)


class NoStory(Exception):
    """There is no beginning to tell it from."""


def tell(entries: Iterable[LogEntry], *, offset_us: int = 0) -> Story:
    """The story of one driver's log, of one segment or of several in order.

    Raises ``NoStory``, and ``SnapshotError`` for a log of another version.
    """
    teller: _Teller | None = None
    for entry in entries:
        match entry:
            case Opened() if teller is None or not entry.is_whole:
                teller = _Teller(entry, teller.story if teller is not None else None, offset_us)
            case Stepped() if teller is not None:
                teller.step(entry)
            case Executed() if teller is not None:
                teller.execute(entry)
    if teller is None:
        raise NoStory("this log has no beginning")
    return teller.story


class _Teller:
    """Follows one scheduler. After a gap in the log another one goes on with the same story."""

    def __init__(self, opened: Opened, before: Story | None, offset_us: int) -> None:
        self._scheduler = thaw(opened.state)
        limits = opened.limits
        self.story = before or Story(
            driver_id=opened.driver_id,
            model=opened.model,
            preset=opened.preset,
            offset_us=offset_us,
            unit=opened.unit,
            max_slots=limits.max_slots,
            kv_total=limits.kv_blocks,
            token_budget=limits.token_budget,
        )
        self._held: dict[int, Life] = {}
        self._in_flight: dict[int, Beat] = {}
        for slot, spec in self._scheduler.held():
            self._held[slot] = self._life(spec, is_partial=True)
        self._claimed: dict[str, None] = {}

    def step(self, stepped: Stepped) -> None:
        now_us, step = stepped.now_us, stepped.step
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

    def execute(self, executed: Executed) -> None:
        beat = self._in_flight.pop(executed.step, None)
        if beat is not None:
            beat.begins_us, beat.ends_us = executed.now_us - executed.busy_us, executed.now_us

    def _next_iteration(self, now_us: int, step: Step) -> int:
        if self.story.unit is TimeUnit.ITERATIONS:
            return now_us
        if step.plan is not None:
            return step.plan.step
        return self.story.beats[-1].iteration + 1 if self.story.beats else 0

    def _take(self, event: Event, now_us: int, iteration: int) -> Life | None:
        """The life of a sequence that was claimed, if the event says so."""
        match event:
            case Claimed(sequence=spec):
                return self._life(spec)
            case Exchanged(sequence=spec, victim_id=victim_id):
                victim = self.story.lives.get(victim_id)
                if victim is not None:
                    by = spec.sequence_id
                    victim.pauses.append(Pause(at_us=now_us, iteration=iteration, reason=PauseReason.SLOT, by=by))
                return self._life(spec)
            case Cancelled(sequence_id=sequence_id):
                life = self.story.lives.get(sequence_id)
                if life is not None and life.cancelled_us is None:
                    life.cancelled_us = now_us
        return None

    def _life(self, spec: SequenceSpec, *, is_partial: bool = False) -> Life:
        life = self.story.lives.get(spec.sequence_id)
        if life is None:
            life = self.story.lives[spec.sequence_id] = Life(spec=spec, is_partial=is_partial)
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
        follows = last is not None and self.story.beats and last.last is self.story.beats[-1]
        if last is not None and follows and last.part is part and last.slot == slot and not last.emits:
            last.last = beat
            last.tokens += tokens
            last.emits = emits
        else:
            life.runs.append(Run(part=part, slot=slot, first=beat, last=beat, tokens=tokens, emits=emits))

    def _tell_claims(self, lives: list[Life], step: Step, now_us: int, iteration: int) -> None:
        started = {start.sequence_id for start in step.plan.starts} if step.plan is not None else set()
        for life in lives:
            held_by = None if life.spec.sequence_id in started else held_by_now(self._scheduler)
            if held_by is Hold.ORDER and step.plan is None:
                held_by = None  # enough plans were in flight: it is nobody's turn
            life.claims.append(Claim(at_us=now_us, iteration=iteration, held_by=held_by))


def held_by_now(scheduler: Scheduler) -> Hold:
    """What keeps a claimed sequence from starting: no slot, no memory, or another that goes first."""
    if scheduler.slots_in_use >= scheduler.limits.max_slots:
        return Hold.SLOTS
    kv_tokens = scheduler.want().kv_tokens
    return Hold.MEMORY if kv_tokens is not None and kv_tokens <= 0 else Hold.ORDER
