"""Recording: what drivers and the door decide goes into files, off the path on which they decide it.

Whoever records appends a record to a list and goes on; a thread of its own turns records into bytes and writes them, a
few times a second. Each log is a row of segments, files that can each be read alone: ``NAME.000000.log``,
``NAME.000001.log`` and so on. A segment begins with an opening, which whoever records makes when the thread asks for
one (a driver's holds the state of its scheduler): at the beginning, when a segment is full, and after a failure.

Nothing here may harm the service. When the disk does not keep up, records are dropped; when it fails, the log says so
once, what waits is dropped, and it is tried again later. Either way the next segment says that some are missing before
it. The oldest segments of this gateway, earlier runs included, are deleted when all of them together are larger than
they may be.

The two threads share a list of records and one flag, ``wants_segment``: the writing thread sets it, the other one
clears it. All else belongs to one of them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from gateway.clock import Clock
from gateway.log_writer import LogWriter, RecordBounds, Shelf
from gateway.recorded_log import Log, Opening

WRITE_EVERY_S = 0.2
"""How long a record may wait in memory. A gateway that is killed loses so much."""

CLOSE_S = 5.0
"""How long a gateway that ends waits for the last records to be written: a disk may hang."""

_log = structlog.get_logger(__name__)


class Recorder:
    """The logs of one gateway in ``folder``, and the thread that writes them. Raises ``OSError`` if it cannot begin.

    ``started`` names this run of the gateway among its runs, in a way that sorts.
    """

    def __init__(
        self, folder: Path, *, gateway_id: str, started: str, clock: Clock, bounds: RecordBounds | None = None
    ) -> None:
        self._folder = folder
        self._prefix = _file_name(gateway_id)
        self._started = _file_name(started)
        self._clock = clock
        self._bounds = bounds or RecordBounds()
        self._writers: list[LogWriter] = []
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        self._is_closing = False
        folder.mkdir(parents=True, exist_ok=True)
        self._shelf = Shelf(folder, self._prefix, self._bounds.total_bytes)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def log(self, name: str, opens: Callable[[], Opening]) -> Log:
        """A new log. ``name`` is unique among those of this run."""
        log = Log(f"{self._prefix}.{self._started}.{_file_name(name)}", opens)
        with self._lock:
            self._writers.append(LogWriter(log, self._folder, self._shelf, self._bounds, self._clock))
        return log

    def close(self) -> None:
        """Write what waits, end every log, and wait for it, but not for a disk that hangs."""
        self._is_closing = True
        self._stirred.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _log.warning("the last records could not be written in time", folder=str(self._folder))

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._stirred.wait(WRITE_EVERY_S)
            is_last = self._is_closing  # before the last round, so that it misses nothing
            with self._lock:
                writers = list(self._writers)
            ended = [writer for writer in writers if writer.write(is_last=is_last)]
            with self._lock:
                self._writers = [writer for writer in self._writers if writer not in ended]


def _file_name(name: str) -> str:
    """``name`` with nothing in it that a file name should not have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "log"
