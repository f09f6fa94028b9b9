"""One log, as those see it who record: a list that a thread empties (``log_writer``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import structlog

from admission.record.entries import DoorOpened, LogEntry, Opened

MOST_PENDING = 20_000
"""Records of one log that may wait to be written: seconds of a fast worker, some ten megabytes."""

_log = structlog.get_logger(__name__)

Opening = Opened | DoorOpened


class Log:
    """One log, as those see it who record. ``opens`` makes an opening; its number and gap are filled in here.

    Used by one thread, the event loop's; the writing thread only takes from ``pending`` and asks for a new segment.
    """

    def __init__(self, name: str, opens: Callable[[], Opening]) -> None:
        self.name = name
        self.pending: deque[LogEntry] = deque()
        self.wants_segment = True
        self.is_closed = False
        self._opens: Callable[[], Opening] | None = opens  # None: it failed, and would fail again
        self._has_gap = True  # until its first opening, nothing can be recorded

    def before(self) -> None:
        """Call before anything is decided that will be recorded: if a segment is due, it opens with the state now."""
        if not self.wants_segment or self._opens is None or len(self.pending) > MOST_PENDING // 2:
            return
        try:
            opening = self._opens()
        except Exception:  # noqa: BLE001 - whatever it is, who decides must not fail because of it
            _log.exception("this log could not be opened, and records nothing", log=self.name)
            self._opens = None
            self._has_gap = True
            return
        self.pending.append(replace(opening, is_whole=not self._has_gap))
        self._has_gap = self.wants_segment = False  # only now: this opening is what was asked for meanwhile, too

    def add(self, entry: LogEntry) -> None:
        """Record it, unless too much waits to be written already."""
        if self._has_gap:
            return
        if len(self.pending) < MOST_PENDING:
            self.pending.append(entry)
        else:
            self._has_gap = self.wants_segment = True

    def close(self) -> None:
        """Nothing more will come."""
        self.is_closed = True
