"""Where entries wait in memory: shared lanes, a line of paused sequences per driver, and what it all adds up to.

A line goes by waiting score, ties by arrival number. A paused sequence keeps its old score, which is that of an older
arrival, and so stands before what arrived in its class since.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterator

from admission.items import Item, Place
from admission.lanes import Lane, order_of
from admission.queue import QueueStats
from admission.standing import COMMON_LANE


class Lines:
    """All lines of one queue. Who joins or leaves is decided elsewhere."""

    def __init__(self) -> None:
        self._shared: list[Item] = []  # all that is in lanes, by score alone
        self._lanes: dict[str, Lane] = {}
        self._paused: dict[str, list[Item]] = {}
        self._by_class: Counter[str] = Counter()
        self._tokens_by_class: Counter[str] = Counter()
        self.num_tokens = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return self._by_class.total()

    def join(self, item: Item, *, pinned_to: str | None) -> None:
        """Into its lane, or the line of the driver to which a paused sequence stays pinned."""
        item.place = Place.WAITING if pinned_to is None else Place.PAUSED
        item.driver_id = pinned_to
        if pinned_to is None:
            self._lanes.setdefault(item.entry.standing.lane, Lane()).join(item)
        insort(self._line(pinned_to), item, key=order_of)
        self._count(item, 1)

    def leave(self, item: Item) -> None:
        if item.place is Place.WAITING:
            self._lanes[item.entry.standing.lane].leave(item)
        line = self._line(item.driver_id)
        del line[bisect_left(line, item.order, key=order_of)]
        self._count(item, -1)

    def give(self, item: Item) -> None:
        """Leave for a driver. What is given out for the first time is charged to its account."""
        if not item.is_charged:
            self._lanes[item.entry.standing.lane].charge(item)
        item.is_charged, item.passes = True, 0
        self.leave(item)

    def in_order_for(self, driver_id: str, classes: Container[str] | None = None) -> Iterator[Item]:
        """What a claim of this driver looks at, one after the other. The lines must not change meanwhile.

        ``classes``: leave out the lanes of all other classes. What all classes share may still bring entries of others.

        Of what comes next in each lane, and in the driver's own line, the best score goes first: its own score, so that
        an old entry of an account that must wait does not lend its age to others.
        """
        own = iter(self._paused.get(driver_id, ()))
        lanes = (
            lane.in_order()
            for name, lane in self._lanes.items()
            if classes is None or name in classes or name == COMMON_LANE
        )
        return heapq.merge(own, *lanes, key=order_of)

    def worst_below(self, rank: int) -> Iterator[Item]:
        """What may be shed for an entry of this rank, the worst score first; never what was given out before."""
        for item in reversed(self._shared):
            if item.may_be_shed and item.entry.rank > rank and not item.is_charged:
                yield item

    def num_of_class(self, name: str) -> int:
        return self._by_class[name]

    def tokens_of_class(self, name: str) -> int:
        return self._tokens_by_class[name]

    def num_ahead(self, item: Item) -> int:
        """Entries in lanes with a better score than this one of them."""
        return bisect_left(self._shared, item.order, key=order_of)

    def stats(self) -> QueueStats:
        names = sorted(name for name, number in self._by_class.items() if number)
        by_class = tuple([(name, self._by_class[name], self._tokens_by_class[name]) for name in names])
        return QueueStats(requests=len(self), tokens=self.num_tokens, by_class=by_class)

    def _line(self, pinned_to: str | None) -> list[Item]:
        return self._shared if pinned_to is None else self._paused.setdefault(pinned_to, [])

    def _count(self, item: Item, sign: int) -> None:
        self._by_class[item.entry.class_name] += sign
        self._tokens_by_class[item.entry.class_name] += sign * item.entry.tokens
        self.num_tokens += sign * item.entry.tokens
        self.num_bytes += sign * len(item.entry.payload)
