"""What happened at one driver: every iteration, and the life of every sequence through them (``tell``).

An *iteration* is a plan that was executed; in the log of a scenario it is named by its time, else by its number.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum

from admission.events import EndReason, PauseReason, Plan, SequenceSpec
from admission.record.entries import TimeUnit


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """From ``at_us`` on the driver took nothing more (``held_by``), or up to ``kv_tokens`` (None: not limited)."""

    at_us: int
    held_by: Hold | None
    kv_tokens: int | None


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

    ``offset_us`` makes its times those that all logs share (``clocks``). ``rooms`` are the changes of what the driver
    had room for. ``until_us`` is its last step. ``stopped_us``: when the driver stopped, as far as the log tells.
    """

    driver_id: str
    model: str
    preset: str
    offset_us: int
    unit: TimeUnit
    began_us: int
    until_us: int
    max_slots: int
    kv_total: int | None
    token_budget: int | None
    beats: list[Beat] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    rooms: list[Room] = field(default_factory=list)
    stopped_us: int | None = None

    def was_there(self, at_us: int) -> bool:
        return self.began_us <= at_us and (self.stopped_us is None or at_us <= self.stopped_us)

    def hold_at(self, at_us: int, *, tokens: int) -> Hold | None:
        """What kept the driver from taking a sequence of so many tokens at that time (its own)."""
        place = bisect_right(self.rooms, at_us, key=lambda room: room.at_us)
        if not place:
            return None
        room = self.rooms[place - 1]
        if room.held_by is None and room.kv_tokens is not None and room.kv_tokens < tokens:
            return Hold.MEMORY
        return room.held_by
