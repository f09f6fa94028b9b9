"""Where entries wait in memory: the shared line, a line of paused sequences per driver, and what it all adds up to.

A line goes by waiting score, ties by arrival number. A paused sequence keeps its old score, which is that of an older
arrival, and so stands before what arrived in its class since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from admission.queue import Entry, Offered, QueueStats


class Place(Enum):
    """Where an entry lies: in a line, where it counts towards the bounds, or with a driver, where it does not."""

    WAITING = "waiting"  # in the shared line
    PAUSED = "paused"  # in the line of the driver to which it is pinned
    HANDED = "handed"  # given to a driver, not yet collected
    HELD = "held"  # with a driver


@dataclass(slots=True, kw_only=True)
class Item:
    """An entry on its way through the queue. ``driver_id`` is None in the shared line only."""

    entry: Entry
    arrival_us: int
    score: int
    number: int
    answer: Offered
    place: Place = Place.WAITING
    driver_id: str | None = None
    cancelled: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.score, self.number, self.entry.entry_id)


class Lines:
    """All lines of one queue. Who joins or leaves is decided elsewhere."""

    def __init__(self) -> None:
        self._items: dict[tuple[int, int, str], Item] = {}
        self._shared: list[tuple[int, int, str]] = []
        self._paused: dict[str, list[tuple[int, int, str]]] = {}
        self._by_class: Counter[str] = Counter()
        self.num_tokens = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def join(self, item: Item, *, pinned_to: str | None) -> None:
        """Into the shared line, or that of the driver to which a paused sequence stays pinned."""
        item.place = Place.WAITING if pinned_to is None else Place.PAUSED
        item.driver_id = pinned_to
        insort(self._line(pinned_to), item.order)
        self._items[item.order] = item
        self._count(item, 1)

    def leave(self, item: Item) -> None:
        line = self._line(item.driver_id)
        del line[bisect_left(line, item.order)]
        del self._items[item.order]
        self._count(item, -1)

    def best_for(self, driver_id: str) -> Item | None:
        """What a claim of this driver takes next: the better of the shared line's first and its own line's."""
        heads = [line[0] for line in (self._shared, self._paused.get(driver_id)) if line]
        return self._items[min(heads)] if heads else None

    def num_ahead(self, item: Item) -> int:
        """Entries of the shared line before this one of it."""
        return bisect_left(self._shared, item.order)

    def stats(self) -> QueueStats:
        by_class = tuple(sorted((name, number) for name, number in self._by_class.items() if number))
        return QueueStats(requests=len(self), tokens=self.num_tokens, by_class=by_class)

    def _line(self, pinned_to: str | None) -> list[tuple[int, int, str]]:
        return self._shared if pinned_to is None else self._paused.setdefault(pinned_to, [])

    def _count(self, item: Item, sign: int) -> None:
        self._by_class[item.entry.class_name] += sign
        self.num_tokens += sign * item.entry.tokens
        self.num_bytes += sign * len(item.entry.payload)
