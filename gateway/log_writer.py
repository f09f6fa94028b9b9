"""The file side of a log: segments on the disk, their number and their bounds. Used by the writing thread alone."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import structlog

from admission.record.entries import Closed, DoorOpened, LogEntry, Opened
from admission.record.framing import FrameWriter
from gateway.clock import Clock
from gateway.recorded_log import Log, Opening

SUFFIX = ".log"

RECORDS_A_BREATH = 32
"""After so many records the thread lets others run: turning one into bytes takes some ten microseconds."""

OPENINGS = 8
"""A segment has at least so many times the bytes of its opening, so that most of a log is what happened."""

SEGMENTS = 16
"""Of so many segments are all that are kept, so that deleting the oldest loses little."""

RETRY_S = 10.0
"""After the disk refused, how long until it is tried again."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """Bytes of all segments of a gateway together, and of one: about, as it is full once it has passed them."""

    total_bytes: int = 1024 * 1024 * 1024
    segment_bytes: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, total_bytes: int) -> RecordBounds:
        return cls(total_bytes=total_bytes, segment_bytes=total_bytes // SEGMENTS)


class Shelf:
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
        """Nothing more comes to ``path``. A write that failed may have left a part: what is there is what counts."""
        self._open.discard(path)
        num_bytes = path.stat().st_size if path.exists() else 0
        self._total += num_bytes - self._sizes[path]
        self._sizes[path] = num_bytes

    def drop(self, path: Path) -> None:
        """``path`` has nothing that anybody could read."""
        path.unlink(missing_ok=True)
        self._open.discard(path)
        self._total -= self._sizes.pop(path)

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


class LogWriter:
    """Writes what waits in ``log``. Without a file it drops what comes until an opening does."""

    def __init__(self, log: Log, folder: Path, shelf: Shelf, bounds: RecordBounds, clock: Clock) -> None:
        self._log = log
        self._folder = folder
        self._shelf = shelf
        self._bounds = bounds
        self._clock = clock
        self._file: BinaryIO | None = None
        self._path = Path()
        self._frames = FrameWriter()
        self._next_segment = 0
        self._has_begun = False  # the file has its opening
        self._is_whole = True  # nothing was dropped here since the last record that was written
        self._num_records = self._num_bytes = self._most_bytes = 0
        self._retry_us = 0
        self._is_failing = False

    def write(self, *, is_last: bool) -> bool:
        """Write what waits; whether the log has ended with that."""
        is_last = is_last or self._log.is_closed  # read before the records: after it none comes
        try:
            self._write_pending()
            if is_last:
                self._end_segment(is_last=True)
            self._is_failing = self._is_failing and self._file is None
        except Exception as error:  # noqa: BLE001 - the disk's fault or ours: the other logs go on, and the service
            self._fail(error)
        return is_last

    def _write_pending(self) -> None:
        pending, parts = self._log.pending, _Parts()
        for _ in range(len(pending)):
            entry = pending.popleft()
            if isinstance(entry, Opened | DoorOpened):
                self._flush(parts)
                self._open(entry, parts)
            elif self._file is not None:
                self._append(entry, parts)
        self._flush(parts)
        self._ask()

    def _ask(self) -> None:
        """Ask for an opening where one is needed."""
        if self._file is None:
            if self._clock() >= self._retry_us:
                self._log.wants_segment = True
        elif self._num_bytes >= self._most_bytes:
            self._num_bytes = 0  # ask once
            self._log.wants_segment = True

    def _open(self, opening: Opening, parts: _Parts) -> None:
        self._end_segment(is_last=False)
        if self._clock() < self._retry_us:
            self._is_whole = False
            return
        number, self._next_segment = self._next_segment, self._next_segment + 1
        is_whole = self._is_whole and (opening.is_whole or number == 0)
        self._folder.mkdir(parents=True, exist_ok=True)  # it may have been cleared away since the last segment
        self._path = self._folder / f"{self._log.name}.{number:06d}{SUFFIX}"
        self._file = self._path.open("xb")
        self._has_begun = False
        self._shelf.begin(self._path)
        self._frames, self._num_records, self._num_bytes = FrameWriter(), 0, 0
        parts.add(self._frames.start())
        self._append(replace(opening, segment=number, is_whole=is_whole), parts)
        self._most_bytes = max(self._bounds.segment_bytes, OPENINGS * parts.num_bytes)
        self._is_whole = True

    def _append(self, entry: LogEntry, parts: _Parts) -> None:
        parts.add(self._frames.frame(entry))
        self._num_records += 1
        if self._num_records % RECORDS_A_BREATH == 0:
            time.sleep(0)  # lets go of the interpreter: the event loop may be waiting for it

    def _end_segment(self, *, is_last: bool) -> None:
        if self._file is None:
            return
        closed = Closed(now_us=self._clock(), num_records=self._num_records, is_last=is_last)
        self._write(self._frames.frame(closed))
        self._close()

    def _flush(self, parts: _Parts) -> None:
        if parts.num_bytes:
            self._write(parts.take())

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        self._file.write(data)
        self._file.flush()
        self._has_begun = True
        self._num_bytes += len(data)
        self._shelf.grow(self._path, len(data))

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        finally:
            self._shelf.end(self._path)

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            _log.warning("recording failed, will be tried again", log=self._log.name, error=repr(error))
        self._is_failing, self._is_whole = True, False
        self._retry_us = self._clock() + int(RETRY_S * 1_000_000)
        is_empty = self._file is not None and not self._has_begun
        with contextlib.suppress(OSError):
            self._close()
        if is_empty:  # else a disk that stays full would be given a file at every try
            with contextlib.suppress(OSError):
                self._shelf.drop(self._path)
                self._next_segment -= 1


class _Parts:
    """Bytes that are written together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self.num_bytes += len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        self.num_bytes = 0
        return data
