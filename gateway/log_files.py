"""Reading recorded logs: which files belong together, in which order, and where one of them ends or is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from admission.record.entries import DoorOpened, LogEntry, Opened
from admission.record.framing import LogCut, LogDamaged, read_frames
from gateway.recording import SUFFIX


class BadLog(Exception):
    """The logs cannot be used. The message is one sentence that names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One file that was read. ``is_cut``: it ends without its end, as a gateway that was killed leaves it."""

    path: Path
    entries: tuple[LogEntry, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What was found: the segments of each driver, in their order, and those of each gateway's door."""

    drivers: tuple[tuple[Segment, ...], ...]
    doors: tuple[tuple[Segment, ...], ...]


def read_logs(paths: Iterable[Path]) -> Logs:
    """Read files, and the logs in folders. Raises ``BadLog``."""
    drivers: dict[Path, list[Segment]] = {}
    doors: dict[Path, list[Segment]] = {}
    for path in _files(paths):
        segment = read_segment(path)
        group = drivers if isinstance(segment.entries[0], Opened) else doors
        group.setdefault(_log_of(path), []).append(segment)
    return Logs(drivers=_in_order(drivers), doors=_in_order(doors))


def read_segment(path: Path) -> Segment:
    """One file. Raises ``BadLog``: also when it is damaged anywhere, as then none of it can be trusted."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadLog(f"{path}: {error.strerror}") from None
    entries: list[LogEntry] = []
    is_cut = False
    try:
        for entry in read_frames(data):
            entries.append(entry)  # noqa: PERF402 - those before a cut are kept
    except LogCut:
        is_cut = True
    except LogDamaged as error:
        raise BadLog(f"{path}: damaged: {error}") from None
    if not entries or not isinstance(entries[0], Opened | DoorOpened):
        raise BadLog(f"{path}: it has no beginning")
    return Segment(path=path, entries=tuple(entries), is_cut=is_cut)


def _files(paths: Iterable[Path]) -> Sequence[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise BadLog(f"{path}: there is no log in this folder")
        found.update(dict.fromkeys(inside))
    return tuple(found)


def _log_of(path: Path) -> Path:
    """The path without the number of the segment."""
    return path.with_name(path.name.removesuffix(SUFFIX).rpartition(".")[0] or path.name)


def _in_order(logs: dict[Path, list[Segment]]) -> tuple[tuple[Segment, ...], ...]:
    return tuple([tuple(sorted(logs[name], key=_number)) for name in sorted(logs)])


def _number(segment: Segment) -> int:
    opened = segment.entries[0]
    assert isinstance(opened, Opened | DoorOpened)  # noqa: S101 - `read_segment` has seen to it
    return opened.segment
