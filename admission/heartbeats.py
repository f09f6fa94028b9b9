"""Who has fallen silent, judged by watching alone.

Drivers beat by a number that grows with each of their acts. An observer reads all the numbers now and then, and calls a
driver silent when its number stood still for a whole lease *of the observer's own clock*, under observation all the
time. So no jump of a wall clock, no freeze of Redis and no pause of the observer ends anybody's lease: after a gap in
the watching, every lease starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    beat: str
    since_s: float


class Heartbeats:
    """``lease_s``: how long one may be silent; ``max_gap_s``: a longer pause in watching starts anew."""

    def __init__(self, *, lease_s: float, max_gap_s: float) -> None:
        self._lease_s = lease_s
        self._max_gap_s = max_gap_s
        self._seen: dict[str, _Seen] = {}
        self._observed_s: float | None = None

    def observe(self, beats: Mapping[str, str], now_s: float) -> tuple[str, ...]:
        """Take in what every driver's number is at ``now_s``; the drivers whose lease has ended, in order of name."""
        if self._observed_s is None or now_s - self._observed_s > self._max_gap_s:
            self._seen.clear()
        self._observed_s = now_s
        for driver_id in self._seen.keys() - beats.keys():
            del self._seen[driver_id]
        for driver_id, beat in beats.items():
            seen = self._seen.get(driver_id)
            if seen is None or seen.beat != beat:
                self._seen[driver_id] = _Seen(beat=beat, since_s=now_s)
        return tuple(sorted(name for name, seen in self._seen.items() if now_s - seen.since_s >= self._lease_s))
