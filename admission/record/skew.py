"""Whether the clocks of several gateways agree, as the numbers of their acts tell.

What has the lower number happened before: if the times of two gateways say otherwise, one of their clocks is wrong, by
so much or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from admission.record.clocks import Clocks
from admission.record.entries import DoorOpened, LogEntry
from admission.record.waiting import Act, place_of

LEAST_US = 2_000_000
"""An act has the time at which its reply came: one that took long looks like a clock that is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """The clock of ``ahead`` is ahead of that of ``behind``, by ``least_us`` or more. Both are gateways."""

    ahead: str
    behind: str
    least_us: int


def skew(doors: Sequence[Sequence[LogEntry]], clocks: Clocks) -> Skew | None:
    """The largest that the logs of these doors show; None: their clocks agree, as far as can be seen."""
    acts: dict[str, list[tuple[Act, int, str]]] = {}  # by model
    for door in doors:
        offset_us = clocks.offset_us(door)
        gateway = next((entry.gateway_id for entry in door if isinstance(entry, DoorOpened)), "")
        for entry in door:
            if isinstance(entry, Act):
                acts.setdefault(entry.model, []).append((entry, entry.now_us + offset_us, gateway))
    found = [each for queue in acts.values() for each in _steps_back(queue)]
    return max(found, key=lambda each: each.least_us, default=None)


def _steps_back(acts: Sequence[tuple[Act, int, str]]) -> list[Skew]:
    latest: dict[str, int] = {}  # by gateway, of the acts so far
    found: list[Skew] = []
    for _, at_us, gateway in sorted(acts, key=lambda each: place_of(each[0])):
        found += [
            Skew(ahead=other, behind=gateway, least_us=before_us - at_us)
            for other, before_us in latest.items()
            if other != gateway and before_us - at_us >= LEAST_US
        ]
        latest[gateway] = max(at_us, latest.get(gateway, at_us))
    return found
