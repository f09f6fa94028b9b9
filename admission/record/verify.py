"""The same events through the same scheduler again: every step must come out as it did, to the byte.

A driver's log is replayed segment by segment, each from the state that it opens with. Where the segment follows the one
before without a gap, that state is also held against the one that the replay has arrived at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from admission.record.entries import Closed, LogEntry, Opened, Stepped
from admission.record.snapshot import freeze, thaw
from admission.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where a replay parts from its log. ``record`` counts within the segment.

    ``plan`` is the step that the log names there (None: it made no plan), ``events`` what went in, ``field`` the way to
    the first value that differs, such as ``plan.prefill[1].length``.
    """

    segment: int
    record: int
    plan: int | None
    events: tuple[str, ...]
    field: str
    logged: object
    replayed: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a replay covered."""

    steps: int
    plans: int
    events: int


class WrongLog(Exception):
    """The records are not those of one driver, in order."""


class DriverReplay:
    """Takes the records of one driver's segments, in order, one after the other."""

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None
        self._segment = -1
        self._record = 0
        self._at_end = False
        self.steps = self.plans = self.events = 0

    def segment(self, entries: Iterable[LogEntry]) -> Difference | None:
        """Replay one segment, or as much of it as comes; the first difference.

        Raises ``WrongLog``, ``SnapshotError``, and whatever ``entries`` raises.
        """
        for self._record, entry in enumerate(entries):
            difference = self._take(entry)
            if difference is not None:
                return difference
        return None

    def covered(self) -> Verified:
        return Verified(steps=self.steps, plans=self.plans, events=self.events)

    def _take(self, entry: LogEntry) -> Difference | None:
        match entry:
            case Opened():
                return self._open(entry)
            case Stepped():
                return self._step(entry)
            case Closed():
                self._at_end = True
        return None

    def _open(self, opened: Opened) -> Difference | None:
        if self._record != 0:
            raise WrongLog("a segment opens in the middle of another")
        follows = self._at_end and opened.is_whole and opened.segment == self._segment + 1
        arrived = self._scheduler if follows else None
        self._segment, self._at_end = opened.segment, False
        if arrived is not None and freeze(arrived) != opened.state:
            return self._difference(None, (), "state", "the state that the segment opens with", "another one")
        self._scheduler = thaw(opened.state)
        return None

    def _step(self, stepped: Stepped) -> Difference | None:
        if self._scheduler is None:
            raise WrongLog("steps before the state that they start from")
        step = self._scheduler.step(stepped.events, stepped.now_us)
        self.steps += 1
        self.plans += stepped.step.plan is not None
        self.events += len(stepped.events)
        if step == stepped.step:
            return None
        field, logged, replayed = first_difference(stepped.step, step)
        plan = stepped.step.plan.step if stepped.step.plan is not None else None
        return self._difference(plan, tuple([_name(event) for event in stepped.events]), field, logged, replayed)

    def _difference(
        self, plan: int | None, events: tuple[str, ...], field: str, logged: object, replayed: object
    ) -> Difference:
        return Difference(
            segment=self._segment,
            record=self._record,
            plan=plan,
            events=events,
            field=field,
            logged=logged,
            replayed=replayed,
        )


def first_difference(one: Any, other: Any, path: str = "") -> tuple[str, object, object]:
    """The way to the first value in which two values differ, and both values there."""
    if is_dataclass(one) and type(one) is type(other):
        for each in fields(one):
            mine, theirs = getattr(one, each.name), getattr(other, each.name)
            if mine != theirs:
                return first_difference(mine, theirs, f"{path}.{each.name}".lstrip("."))
    if isinstance(one, tuple) and isinstance(other, tuple):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            if mine != theirs:
                return first_difference(mine, theirs, f"{path}[{index}]")
        if len(one) != len(other):
            return f"len({path})", len(one), len(other)
    return path, one, other


def _name(event: object) -> str:
    """An event in a few words: its kind, and whom it is about."""
    about = getattr(event, "sequence_id", None) or getattr(getattr(event, "sequence", None), "sequence_id", None)
    step = getattr(event, "step", None)
    detail = about if about is not None else step
    return type(event).__name__ if detail is None else f"{type(event).__name__}({detail})"
