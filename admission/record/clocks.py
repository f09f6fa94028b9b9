"""One time for logs of several gateways: each says what Unix time it was when its own clock stood somewhere."""

from __future__ import annotations

from collections.abc import Iterable

from admission.record.entries import DoorOpened, LogEntry, Opened, TimeUnit


class Clocks:
    """Times since the earliest opening. ``unit`` is that of all logs: iterations and microseconds do not mix."""

    def __init__(self, logs: Iterable[Iterable[LogEntry]]) -> None:
        openings = [opening for log in logs if (opening := _opening(log)) is not None]
        self.unit = openings[0].unit if openings else TimeUnit.MICROSECONDS
        self._zero_us = min((opening.opened_unix_us for opening in openings), default=0)

    def offset_us(self, log: Iterable[LogEntry]) -> int:
        """What to add to a time of ``log`` to get one that all logs share."""
        opening = _opening(log)
        return 0 if opening is None else opening.opened_unix_us - opening.opened_us - self._zero_us


def _opening(log: Iterable[LogEntry]) -> Opened | DoorOpened | None:
    return next((entry for entry in log if isinstance(entry, Opened | DoorOpened)), None)
