"""What a picture of a run shows: lanes of slots, what waited under them, and how much of each limit was used.

All of it is numbers and short texts, so that any way of drawing can take it. Times are those of ``Clocks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from admission.events import PauseReason
from admission.queue import REFUSALS
from admission.record.clocks import Clocks
from admission.record.entries import Answered, DoorOpened, LogEntry, OfferMade, TimeUnit
from admission.record.explain import FIRST_ERROR
from admission.record.story import Part, Story
from admission.record.waiting import queues

_LEAST = {TimeUnit.MICROSECONDS: 1_000, TimeUnit.ITERATIONS: 1}
"""What a picture shows at least, so that one in which nothing ran has an axis that can be read."""

_PREEMPTED = {PauseReason.SLOT: "preempted for its slot", PauseReason.KV: "preempted for its KV memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A sequence did one thing in one slot from ``begins`` to ``ends``, in iterations ``first`` to ``last``."""

    slot: int
    begins: int
    ends: int
    sequence_id: str
    part: Part
    tokens: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One iteration: its time, and how much of each limit it used."""

    iteration: int
    begins: int
    ends: int
    decode: int
    prefill: int
    unused_budget: int | None
    slots: int
    kv_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a moment to a sequence (or to a request that had none yet); ``by``: another one."""

    at: int
    name: str
    text: str
    slot: int | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPicture:
    """What one driver did."""

    driver_id: str
    model: str
    preset: str
    max_slots: int
    kv_total: int | None
    token_budget: int | None
    bars: tuple[Bar, ...]
    levels: tuple[Level, ...]
    preemptions: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A sequence waited in the queue."""

    sequence_id: str
    begins: int
    ends: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything. ``queue_bound``: None where no door's log was there."""

    unit: TimeUnit
    drivers: tuple[DriverPicture, ...]
    waits: tuple[Wait, ...]
    rejections: tuple[Mark, ...]
    queue_bound: int | None
    ends: int


def picture(stories: Sequence[Story], doors: Sequence[Sequence[LogEntry]], clocks: Clocks) -> Picture:
    """The picture of all drivers and doors, on one clock."""
    drawn = tuple([_driver(story) for story in stories])
    levels = [level.ends for each in drawn for level in each.levels]
    waits, rejections = _door(doors, clocks, ends=max(levels, default=0))
    bounds = [entry.bounds.max_requests for door in doors for entry in door if isinstance(entry, DoorOpened)]
    return Picture(
        unit=clocks.unit,
        drivers=drawn,
        waits=waits,
        rejections=rejections,
        queue_bound=bounds[0] if bounds else None,
        ends=max([*levels, *[wait.ends for wait in waits], *[mark.at for mark in rejections], _LEAST[clocks.unit]]),
    )


def _driver(story: Story) -> DriverPicture:
    offset = story.offset_us
    times = _times(story)
    bars = [
        Bar(
            slot=run.slot,
            begins=times[run.first.plan.step][0] + offset,
            ends=times[run.last.plan.step][1] + offset,
            sequence_id=sequence_id,
            part=run.part,
            tokens=run.tokens,
            first=run.first.iteration,
            last=run.last.iteration,
        )
        for sequence_id, life in story.lives.items()
        for run in life.runs
    ]
    levels = [
        Level(
            iteration=beat.iteration,
            begins=times[beat.plan.step][0] + offset,
            ends=times[beat.plan.step][1] + offset,
            decode=len(beat.plan.decode),
            prefill=beat.prefill_tokens,
            unused_budget=beat.unused_budget,
            slots=beat.slots,
            kv_blocks=beat.kv_blocks,
        )
        for beat in story.beats
    ]
    return DriverPicture(
        driver_id=story.driver_id,
        model=story.model,
        preset=story.preset,
        max_slots=story.max_slots,
        kv_total=story.kv_total,
        token_budget=story.token_budget,
        bars=tuple(sorted(bars, key=lambda bar: (bar.begins, bar.slot))),
        levels=tuple(levels),
        preemptions=tuple(_preemptions(story, offset)),
    )


def _times(story: Story) -> dict[int, tuple[int, int]]:
    """When each iteration ran, one after the other.

    A report says how long its iteration took, and came some time after its end: two that come at once were computed one
    after the other all the same. An iteration that was never reported is as long as a moment, at the time of its plan.
    """
    times: dict[int, tuple[int, int]] = {}
    next_begins: int | None = None
    for beat in reversed(story.beats):
        if beat.begins_us is not None and beat.ends_us is not None:
            ends = beat.ends_us if next_begins is None else min(beat.ends_us, next_begins)
            next_begins = max(ends - (beat.ends_us - beat.begins_us), beat.planned_us)
            times[beat.plan.step] = next_begins, ends
    free = 0
    for beat in story.beats:
        begins, ends = times.get(beat.plan.step, (beat.planned_us, beat.planned_us + 1))
        begins = max(begins, free)
        free = max(ends, begins + 1)
        times[beat.plan.step] = begins, free
    return times


def _preemptions(story: Story, offset: int) -> Iterable[Mark]:
    for sequence_id, life in story.lives.items():
        for pause in life.pauses:
            before = [begin.slot for begin in life.begins if begin.beat.planned_us <= pause.at_us]
            slot = before[-1] if before else None
            text = _PREEMPTED[pause.reason]
            yield Mark(at=pause.at_us + offset, name=sequence_id, text=text, slot=slot, by=pause.by)


def _door(
    doors: Sequence[Sequence[LogEntry]], clocks: Clocks, *, ends: int
) -> tuple[tuple[Wait, ...], tuple[Mark, ...]]:
    waits: list[Wait] = []
    marks: list[Mark] = []
    for queue in queues(doors, clocks):
        since: dict[str, int] = {}
        for moment in queue:
            waits += [Wait(sequence_id=name, begins=since.pop(name), ends=moment.at_us) for name in moment.left]
            since |= dict.fromkeys(moment.joined, moment.at_us)
            act = moment.act
            if isinstance(act, OfferMade) and act.outcome in REFUSALS:
                marks.append(Mark(at=moment.at_us, name=act.request_id, text=f"refused: {act.outcome.value}"))
        waits += [Wait(sequence_id=name, begins=begun, ends=max(ends, begun)) for name, begun in since.items()]
    marks += _refused_at_the_door(doors, clocks)
    return tuple(sorted(waits, key=lambda wait: wait.begins)), tuple(sorted(marks, key=lambda mark: mark.at))


def _refused_at_the_door(doors: Sequence[Sequence[LogEntry]], clocks: Clocks) -> Iterable[Mark]:
    """Requests that were answered with an error and never offered."""
    offered = {entry.request_id for door in doors for entry in door if isinstance(entry, OfferMade)}
    for door in doors:
        offset_us = clocks.offset_us(door)
        for entry in door:
            if isinstance(entry, Answered) and entry.request_id not in offered and entry.status >= FIRST_ERROR:
                yield Mark(at=entry.now_us + offset_us, name=entry.request_id, text=f"refused: {entry.outcome}")
