"""Two calendars: what falls due with a plan, and what falls due at a time.

They let the scheduler touch a sequence when something happens to it, and not in every step.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from admission.sequence import Sequence


class StepCalendar:
    """Sequences by the step in which they are due. Entries are removed exactly, never skipped as stale."""

    def __init__(self) -> None:
        self._due: dict[int, dict[int, Sequence]] = {}

    def add(self, step: int, sequence: Sequence) -> None:
        self._due.setdefault(step, {})[sequence.number] = sequence

    def remove(self, step: int, sequence: Sequence) -> None:
        day = self._due[step]
        del day[sequence.number]
        if not day:
            del self._due[step]

    def take(self, step: int) -> list[Sequence]:
        """Remove and return what is due in this step, in the order in which it was added."""
        return list(self._due.pop(step, {}).values())


class Deadlines:
    """Sequences by their deadline (microseconds, absolute); those without one are not here."""

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._sequences: dict[str, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        if sequence.spec.deadline_us is not None:
            insort(self._order, (sequence.spec.deadline_us, sequence.spec.sequence_id))
            self._sequences[sequence.spec.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        if sequence.spec.deadline_us is not None:
            del self._order[bisect_left(self._order, (sequence.spec.deadline_us, sequence.spec.sequence_id))]
            del self._sequences[sequence.spec.sequence_id]

    def next_due(self) -> int | None:
        return self._order[0][0] if self._order else None

    def expired(self, now: int) -> list[Sequence]:
        """The sequences whose deadline is not after ``now``, earliest first. They stay until removed."""
        end = bisect_left(self._order, (now + 1, ""))
        return [self._sequences[sequence_id] for _, sequence_id in self._order[:end]]
