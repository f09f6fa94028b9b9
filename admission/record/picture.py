"""What a picture of a run shows: lanes of slots, what waited under them, and how much of each limit was used.

All of it is numbers and short texts, so that any way of drawing can take it. Times are those of ``Clocks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from admission.record.clocks import Clocks
from admission.record.entries import Answered, DoorOpened, LogEntry, OfferMade, TimeUnit
from admission.record.story import Beat, Part, Story
from admission.record.waiting import REFUSED, QueueMoment, queues


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
    """Something that happened at a moment to a sequence (or to a request that had none yet)."""

    at: int
    name: str
    text: str
    slot: int | None = None


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
        ends=max([*levels, *[wait.ends for wait in waits], *[mark.at for mark in rejections], 1]),
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
    """When each iteration ran. One that was never reported is as long as a moment, at the time of its plan."""
    return {beat.plan.step: _time(beat) for beat in story.beats}


def _time(beat: Beat) -> tuple[int, int]:
    if beat.begins_us is None or beat.ends_us is None:
        return beat.planned_us, beat.planned_us + 1
    return beat.begins_us, max(beat.ends_us, beat.begins_us + 1)


def _preemptions(story: Story, offset: int) -> Iterable[Mark]:
    for sequence_id, life in story.lives.items():
        for pause in life.pauses:
            before = [begin.slot for begin in life.begins if begin.beat.planned_us <= pause.at_us]
            text = f"preempted ({pause.reason.value})" + (f" by {pause.by}" if pause.by else "")
            yield Mark(at=pause.at_us + offset, name=sequence_id, text=text, slot=before[-1] if before else None)


def _door(
    doors: Sequence[Sequence[LogEntry]], clocks: Clocks, *, ends: int
) -> tuple[tuple[Wait, ...], tuple[Mark, ...]]:
    offsets = {id(entry): clocks.offset_us(door) for door in doors for entry in door}
    waits: list[Wait] = []
    marks: list[Mark] = []
    for queue in queues(doors):
        since: dict[str, int] = {}
        for moment in queue:
            act = moment.act
            at = act.now_us + offsets[id(act)]
            waits += _changes(moment, since, at)
            if isinstance(act, OfferMade) and act.outcome in REFUSED:
                marks.append(Mark(at=at, name=act.request_id, text=f"refused: {act.outcome.value}"))
        waits += [Wait(sequence_id=name, begins=begun, ends=max(ends, begun)) for name, begun in since.items()]
    offered = {entry.request_id for door in doors for entry in door if isinstance(entry, OfferMade)}
    marks += [
        Mark(at=entry.now_us + offsets[id(entry)], name=entry.request_id, text=f"refused: {entry.outcome}")
        for door in doors
        for entry in door
        if isinstance(entry, Answered) and entry.request_id not in offered and entry.status >= 400
    ]
    return tuple(sorted(waits, key=lambda wait: wait.begins)), tuple(sorted(marks, key=lambda mark: mark.at))


def _changes(moment: QueueMoment, since: dict[str, int], at: int) -> list[Wait]:
    """Who left the queue with this act; ``since`` is brought up to date."""
    waiting = dict.fromkeys(moment.waiting)
    left = [Wait(sequence_id=name, begins=begun, ends=at) for name, begun in since.items() if name not in waiting]
    for wait in left:
        del since[wait.sequence_id]
    for name in waiting:
        since.setdefault(name, at)
    return left
