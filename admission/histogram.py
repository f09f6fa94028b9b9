"""Counts of whole numbers, and their percentiles."""

from __future__ import annotations

from collections import Counter


class Histogram:
    """How often each value came. Exact: nothing is put into ranges."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value: int, times: int = 1) -> None:
        self._counts[value] += times

    @property
    def count(self) -> int:
        return self._counts.total()

    @property
    def total(self) -> int:
        return sum(value * times for value, times in self._counts.items())

    def percentiles(self, *percents: int) -> tuple[int, ...]:
        """The least values that so many percent (1 to 100, ascending) do not exceed: nearest rank, no interpolation.

        Raises ``ValueError`` when there are no values.
        """
        if not self._counts:
            raise ValueError("no values")
        count, found, seen = self.count, list[int](), 0
        for value, times in sorted(self._counts.items()):
            seen += times
            while len(found) < len(percents) and seen * 100 >= percents[len(found)] * count:
                found.append(value)
        return tuple(found)
