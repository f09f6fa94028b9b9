"""Reading recorded logs: which files belong together, in which order, and where one of them ends or is damaged."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from admission.record.entries import Closed, DoorOpened, LogEntry, Opened
from admission.record.framing import MAGIC, LogCut, LogDamaged, check_frames, read_frames
from gateway.log_writer import SUFFIX


class BadLog(Exception):
    """The logs cannot be used. The message is one sentence that names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One file, whose bytes were found whole.

    ``is_cut``: it ends without its end, as a gateway that was killed leaves it. ``is_last``: it says that none follows.
    Its records take many times the memory of the file, so they are read when they are asked for, each time anew.
    """

    path: Path
    opened: Opened | DoorOpened
    is_cut: bool
    is_last: bool

    @property
    def entries(self) -> tuple[LogEntry, ...]:
        """Raises ``BadLog`` where a record has no meaning in this version."""
        entries: list[LogEntry] = []
        try:
            for entry in read_frames(_bytes_of(self.path)):
                entries.append(entry)  # noqa: PERF402 - those before a cut are kept
        except LogCut:
            pass  # the file ends there; if it is being written, it may have grown since it was checked
        except LogDamaged as error:
            raise BadLog(f"{self.path}: damaged: {error}") from None
        return tuple(entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What was found: the segments of each driver, in their order, and those of each gateway's door.

    ``unread`` are files that end before their first record: a gateway was killed in the moment in which it began one.
    """

    drivers: tuple[tuple[Segment, ...], ...]
    doors: tuple[tuple[Segment, ...], ...]
    unread: tuple[Path, ...] = ()

    def remarks(self) -> list[str]:
        """All that is missing from any of them."""
        return [remark for log in (*self.drivers, *self.doors) for remark in remarks(log)] + self.unread_remarks()

    def unread_remarks(self) -> list[str]:
        return [f"{path.name} ends before its first record" for path in self.unread]


def read_logs(paths: Iterable[Path]) -> Logs:
    """Check files, and the logs in folders. Raises ``BadLog``."""
    drivers: dict[Path, list[Segment]] = {}
    doors: dict[Path, list[Segment]] = {}
    known: dict[Hashable, Path] = {}
    unread: list[Path] = []
    for path in _files(paths):
        segment = read_segment(path)
        if segment is None:
            unread.append(path)
            continue
        other = known.setdefault(_identity(segment.opened), path)
        if other != path:
            raise BadLog(f"{path} is a copy of {other}, or begins as that does: give one of them")
        group = drivers if isinstance(segment.opened, Opened) else doors
        group.setdefault(_log_of(path), []).append(segment)
    if not drivers and not doors:
        raise BadLog("there is not one whole record in these files")
    return Logs(drivers=_in_order(drivers), doors=_in_order(doors), unread=tuple(unread))


def read_segment(path: Path) -> Segment | None:
    """Check one file; None: it ends before its first record.

    Raises ``BadLog``: also when it is damaged anywhere, as then none of it can be trusted.
    """
    data = _bytes_of(path)
    closed: Closed | None = None
    try:
        closed = check_frames(data)
    except LogCut:
        pass
    except LogDamaged as error:
        raise BadLog(f"{path}: damaged: {error}") from None
    try:
        opened = next(read_frames(data))
    except LogCut:
        return None
    except LogDamaged as error:
        raise BadLog(f"{path}: {error}") from None
    if not isinstance(opened, Opened | DoorOpened):
        raise BadLog(f"{path}: it has no beginning")
    return Segment(path=path, opened=opened, is_cut=closed is None, is_last=closed is not None and closed.is_last)


def remarks(segments: Sequence[Segment]) -> list[str]:
    """What is missing from a log: one sentence for each place."""
    found: list[str] = []
    first = segments[0].opened
    if first.segment > 0:
        found.append(f"{segments[0].path.name} is the first that is here: what came before it was deleted, or left out")
    elif not first.is_whole:
        found.append(_not_recorded(segments[0]))
    for before, segment in pairwise(segments):
        if segment.opened.segment > before.opened.segment + 1:
            found.append(f"there are segments missing between {before.path.name} and {segment.path.name}")
        elif not segment.opened.is_whole:
            found.append(_not_recorded(segment))
    found += [
        f"{segment.path.name} ends without its end: its writer was killed, failed, or is still writing"
        for segment in segments
        if segment.is_cut
    ]
    if not segments[-1].is_cut and not segments[-1].is_last:
        found.append(f"{segments[-1].path.name} is not the last: what came after it is not here")
    return found


def _not_recorded(segment: Segment) -> str:
    return f"some steps before {segment.path.name} were not recorded, as the disk did not keep up"


def _bytes_of(path: Path) -> bytes:
    """The whole file, if it begins as a log does: anything else may have any size, or no end."""
    try:
        if path.exists() and not path.is_file():
            raise BadLog(f"{path}: this is no file")
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            if not MAGIC.startswith(head):
                raise BadLog(f"{path}: this is no log of this version")
            return head + file.read()
    except OSError as error:
        raise BadLog(f"{path}: {error.strerror}") from None


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    """Each file once, however it is named."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise BadLog(f"{path}: there is no log in this folder")
        for file in inside:
            found.setdefault(file.resolve(), file)
    return found.values()


def _identity(opened: Opened | DoorOpened) -> Hashable:
    """No two segments have opened as the same part of the same log at the same moment."""
    whose = opened.driver_id if isinstance(opened, Opened) else opened.gateway_id
    return type(opened), whose, opened.segment, opened.opened_us, opened.opened_unix_us


def _log_of(path: Path) -> Path:
    """The path without the number of the segment."""
    return path.parent.resolve() / (path.name.removesuffix(SUFFIX).rpartition(".")[0] or path.name)


def _in_order(logs: dict[Path, list[Segment]]) -> tuple[tuple[Segment, ...], ...]:
    return tuple([tuple(sorted(logs[name], key=lambda segment: segment.opened.segment)) for name in sorted(logs)])
