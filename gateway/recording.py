"""Recording: what drivers and the door decide goes into files, off the path on which they decide it.

Whoever records appends a record to a list and goes on; a thread of its own turns records into bytes and writes them, a
few times a second. Each log is a row of segments, files that can each be read alone: ``NAME.000000.log``,
``NAME.000001.log`` and so on. When a segment is full, the next record of its log is preceded by a new opening, which
whoever records makes at that moment (a driver's holds the state of its scheduler).

Nothing here may harm the service. When the disk does not keep up, records are dropped, and the next segment says that
some are missing before it; when it fails, the log says so once, and recording tries again later. The oldest segments of
this gateway, earlier runs included, are deleted when all of them together are larger than they may be.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from admission.record.entries import Closed, DoorOpened, LogEntry, Opened
from admission.record.framing import FrameWriter
from gateway.clock import Clock

SUFFIX = ".log"
WRITE_EVERY_S = 0.2
"""How long a record may wait in memory. A gateway that is killed loses so much."""

MOST_PENDING = 20_000
"""Records of one log that may wait to be written: seconds of a fast worker, some ten megabytes."""

RETRY_S = 10.0
"""After the disk refused, how long until it is tried again."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """Bytes of one segment, and of all segments of a gateway together."""

    segment_bytes: int = 64 * 1024 * 1024
    total_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What whoever opens a segment is told: its number, and whether it follows the one before without a gap."""

    segment: int
    is_whole: bool


class Log:
    """One log, as those see it who record. ``opens`` makes the first record of a segment.

    Used by one thread, the event loop's; the writing thread only takes from ``pending`` and asks for a new segment.
    """

    def __init__(self, name: str, opens: Callable[[Opening], LogEntry]) -> None:
        self.name = name
        self.pending: deque[LogEntry] = deque()
        self.wants_segment = True
        self.is_closed = False
        self._opens = opens
        self._next_segment = 0
        self._has_gap = False

    def before(self) -> None:
        """Call before anything is decided that will be recorded: if a segment is due, it opens with the state now."""
        if self.wants_segment and len(self.pending) < MOST_PENDING // 2:
            self.wants_segment = False
            opening = Opening(segment=self._next_segment, is_whole=not self._has_gap)
            try:
                opened = self._opens(opening)
            except Exception:  # noqa: BLE001 - whatever it is, who decides must not fail because of it
                _log.exception("this log could not be opened, and records nothing", log=self.name)
                self._has_gap = True
                return
            self._next_segment += 1
            self._has_gap = False
            self.pending.append(opened)

    def add(self, entry: LogEntry) -> None:
        """Record it, unless too much waits to be written already."""
        if len(self.pending) >= MOST_PENDING:
            self._has_gap = self.wants_segment = True
        elif not self._has_gap:
            self.pending.append(entry)

    def close(self) -> None:
        """Nothing more will come."""
        self.is_closed = True

    def lost(self) -> None:
        """The writing thread could not write what was added: the next segment begins after a gap."""
        self._has_gap = self.wants_segment = True


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
        self._writers: list[_LogWriter] = []
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        self._is_closing = False
        folder.mkdir(parents=True, exist_ok=True)
        self._shelf = _Shelf(folder, self._prefix, self._bounds.total_bytes)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def log(self, name: str, opens: Callable[[Opening], LogEntry]) -> Log:
        """A new log. ``name`` is unique among those of this run."""
        log = Log(f"{self._prefix}.{self._started}.{_file_name(name)}", opens)
        with self._lock:
            self._writers.append(_LogWriter(log, self._folder, self._shelf, self._bounds, self._clock))
        return log

    def close(self) -> None:
        """Write what waits, end every log, and wait for it."""
        self._is_closing = True
        self._stirred.set()
        self._thread.join()

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


class _Shelf:
    """The segments of one gateway in a folder, oldest first. Those that are being written stay, whatever they take."""

    def __init__(self, folder: Path, prefix: str, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        found = [path for path in folder.glob(f"{prefix}.*{SUFFIX}") if path.is_file()]
        found.sort(key=lambda path: path.stat().st_mtime_ns)
        self._sizes = {path: path.stat().st_size for path in found}
        self._total = sum(self._sizes.values())
        self._open: set[Path] = set()

    def begin(self, path: Path) -> None:
        self._sizes[path] = 0
        self._open.add(path)

    def end(self, path: Path) -> None:
        self._open.discard(path)

    def grow(self, path: Path, num_bytes: int) -> None:
        """``path`` is larger now: delete the oldest of the others until all fit."""
        self._sizes[path] += num_bytes
        self._total += num_bytes
        if self._total <= self._most_bytes:
            return
        for oldest in [path for path in self._sizes if path not in self._open]:
            oldest.unlink(missing_ok=True)
            self._total -= self._sizes.pop(oldest)
            if self._total <= self._most_bytes:
                return


class _LogWriter:
    """The file side of one log. Used by the writing thread alone."""

    def __init__(self, log: Log, folder: Path, shelf: _Shelf, bounds: RecordBounds, clock: Clock) -> None:
        self._log = log
        self._folder = folder
        self._shelf = shelf
        self._bounds = bounds
        self._clock = clock
        self._file: BinaryIO | None = None
        self._path = Path()
        self._frames = FrameWriter()
        self._num_records = self._num_bytes = 0
        self._retry_us = 0
        self._is_failing = False

    def write(self, *, is_last: bool) -> bool:
        """Write what waits; whether the log has ended with that."""
        is_last = is_last or self._log.is_closed
        if self._retry_us > self._clock() and not is_last:
            self._log.pending.clear()
            return False
        try:
            self._write_pending()
            if is_last:
                self._end_segment(is_last=True)
            self._is_failing = False
        except OSError as error:
            self._fail(error)
        return is_last

    def _write_pending(self) -> None:
        pending = self._log.pending
        parts: list[bytes] = []
        while pending:
            entry = pending.popleft()
            if isinstance(entry, Opened | DoorOpened):
                self._flush(parts)
                self._end_segment(is_last=False)
                self._begin_segment(entry.segment)
                parts.append(self._frames.start())
            if self._file is not None:  # else these belong to a segment that could not be written
                parts.append(self._frames.frame(entry))
                self._num_records += 1
        self._flush(parts)
        if self._num_bytes >= self._bounds.segment_bytes:
            self._num_bytes = 0
            self._log.wants_segment = True

    def _begin_segment(self, segment: int) -> None:
        self._path = self._folder / f"{self._log.name}.{segment:06d}{SUFFIX}"
        self._file = self._path.open("xb")
        self._shelf.begin(self._path)
        self._frames = FrameWriter()
        self._num_records = self._num_bytes = 0

    def _end_segment(self, *, is_last: bool) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            closed = self._frames.frame(Closed(now_us=self._clock(), num_records=self._num_records, is_last=is_last))
            file.write(closed)
        self._shelf.grow(self._path, len(closed))
        self._shelf.end(self._path)

    def _flush(self, parts: list[bytes]) -> None:
        if self._file is None or not parts:
            return
        data = b"".join(parts)
        parts.clear()
        self._file.write(data)
        self._file.flush()
        self._num_bytes += len(data)
        self._shelf.grow(self._path, len(data))

    def _fail(self, error: OSError) -> None:
        if not self._is_failing:
            _log.warning("recording failed, will be tried again", log=self._log.name, error=str(error))
        self._is_failing = True
        self._retry_us = self._clock() + int(RETRY_S * 1_000_000)
        if self._file is not None:
            self._file.close()
            self._file = None
            self._shelf.end(self._path)
        self._log.pending.clear()
        self._log.lost()


def _file_name(name: str) -> str:
    """``name`` with nothing in it that a file name should not have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "log"
