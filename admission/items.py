"""An entry on its way through the queue in memory, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from admission.queue import Claim, Entry, Offered, Shed


class Place(Enum):
    """Where an entry lies: in a line, where it counts towards the bounds, or with a driver, where it does not."""

    WAITING = "waiting"  # in a line that all drivers share
    PAUSED = "paused"  # in the line of the driver to which it is pinned
    HANDED = "handed"  # given to a driver, not yet collected
    HELD = "held"  # with a driver


@dataclass(slots=True, kw_only=True)
class Item:
    """``driver_id`` is None in a shared line only.

    ``passes``: how often others went ahead of it because it did not fit. ``is_charged``: its tokens are on its account,
    since it, or what it goes on from, has been given out before. ``shed``: what it displaced when it came.
    """

    entry: Entry
    arrival_us: int
    score: int
    number: int
    answer: Offered
    may_be_shed: bool
    preempts: bool
    shed: tuple[Shed, ...] = ()
    place: Place = Place.WAITING
    driver_id: str | None = None
    passes: int = 0
    is_charged: bool = False
    cancelled: bool = False

    @property
    def order(self) -> tuple[int, int]:
        return (self.score, self.number)

    @property
    def is_in_line(self) -> bool:
        return self.place in (Place.WAITING, Place.PAUSED)

    def claim(self, *, victim_id: str | None = None) -> Claim:
        """What a driver is told of it."""
        return Claim(entry=self.entry, arrival_us=self.arrival_us, score=self.score, victim_id=victim_id)
