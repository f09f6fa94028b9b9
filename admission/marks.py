"""How entries that are gone from the queue in memory answered, for as long as somebody may ask again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from admission.keys import MARK_TTL_MS
from admission.queue import Offered, Shed


class Ending(Enum):
    """How an entry left the queue. UNKNOWN: it was withdrawn before it came."""

    SETTLED = "settled"
    WITHDRAWN = "withdrawn"
    SHED = "shed"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a repeated offer is answered, and how the entry ended."""

    answer: Offered
    ending: Ending
    shed: tuple[Shed, ...] = ()
    expires_us: int


class Marks:
    """Marks by entry id, oldest first: all live equally long."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def get(self, entry_id: str) -> Mark | None:
        return self._marks.get(entry_id)

    def add(self, entry_id: str, answer: Offered, ending: Ending, now_us: int, *, shed: tuple[Shed, ...] = ()) -> None:
        self._marks[entry_id] = Mark(answer=answer, ending=ending, shed=shed, expires_us=now_us + MARK_TTL_MS * 1000)

    def forget(self, now_us: int) -> None:
        """Drop those whose time is over."""
        while self._marks:
            oldest = next(iter(self._marks))
            if self._marks[oldest].expires_us > now_us:
                return
            del self._marks[oldest]
