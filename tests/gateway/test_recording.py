"""Recording writes what it is given, keeps to its bounds, and never harms whoever records, whatever the disk does."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog.testing

from admission.queue import QueueBounds, Withdrawn
from admission.record.entries import Closed, DoorOpened, LogEntry, Withdrew
from admission.record.framing import LogCut, read_frames
from admission.standing import WaitingOrderName
from gateway.log_writer import RETRY_S, LogWriter, RecordBounds, Shelf
from gateway.recorded_log import MOST_PENDING, Log
from gateway.recording import Recorder

SMALL = RecordBounds(total_bytes=1_000_000, segment_bytes=2_000)


class Desk:
    """One log and its writing side in one thread, with a clock that the test moves."""

    def __init__(self, folder: Path, bounds: RecordBounds = SMALL, name: str = "g0.run.door") -> None:
        self.now_us = 0
        self.num_openings = 0
        self.log = Log(name, self._opens)
        self.shelf = Shelf(folder, "g0", bounds.total_bytes)
        self.writer = LogWriter(self.log, folder, self.shelf, bounds, lambda: self.now_us)

    def _opens(self) -> DoorOpened:
        self.num_openings += 1
        return DoorOpened(
            gateway_id="g0",
            segment=0,
            is_whole=True,
            opened_us=self.now_us,
            opened_unix_us=self.now_us,
            classes=(),
            bounds=QueueBounds(max_requests=1),
            waiting_order=WaitingOrderName.AGING,
        )

    def record(self, *numbers: int) -> None:
        for number in numbers:
            self.log.before()
            self.log.add(act(number))

    def write(self) -> None:
        self.writer.write(is_last=False)

    def end(self) -> None:
        self.log.close()
        assert self.writer.write(is_last=False)


def act(number: int) -> Withdrew:
    return Withdrew(now_us=number, act=number, model="m", sequence_id=f"s{number}", outcome=Withdrawn.WITHDRAWN)


def read(path: Path) -> list[LogEntry]:
    return list(read_frames(path.read_bytes()))


def read_to_the_cut(path: Path) -> list[LogEntry]:
    entries: list[LogEntry] = []
    with pytest.raises(LogCut):
        entries.extend(read_frames(path.read_bytes()))
    return entries


def acts(entries: list[LogEntry]) -> list[int]:
    return [entry.act for entry in entries if isinstance(entry, Withdrew)]


def opening(path: Path) -> DoorOpened:
    opened = next(read_frames(path.read_bytes()))
    assert isinstance(opened, DoorOpened)
    return opened


def logs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, *, after_bytes: int = 0) -> Iterator[None]:
    """Files opened meanwhile take so many bytes, then none."""
    whole = Path.open

    class Full(io.BufferedWriter):
        left = after_bytes

        def write(self, data: bytes) -> int:  # type: ignore[override]
            written = super().write(data[: self.left])
            self.left -= written
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return written

    def opened(path: Path, mode: str = "r") -> io.IOBase:
        return Full(io.FileIO(path, mode.replace("b", ""))) if "x" in mode else whole(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        yield


def test_what_is_recorded_is_written(tmp_path: Path) -> None:
    """The point of it all; the last record says that none is missing."""
    desk = Desk(tmp_path)
    desk.record(1, 2)
    desk.write()
    desk.record(3)
    desk.end()
    (path,) = logs_in(tmp_path)
    assert path.name == "g0.run.door.000000.log"
    entries = read(path)
    assert acts(entries) == [1, 2, 3]
    assert entries[-1] == Closed(now_us=0, num_records=4, is_last=True)


def test_a_log_into_which_nothing_came_leaves_no_file(tmp_path: Path) -> None:
    """A driver that never steps has nothing to tell."""
    desk = Desk(tmp_path)
    desk.write()
    desk.end()
    assert logs_in(tmp_path) == []


def test_a_full_segment_is_followed_by_another_without_a_gap(tmp_path: Path) -> None:
    """Rotation loses nothing: the segments' records are all that came, in order."""
    desk = Desk(tmp_path)
    for number in range(400):
        desk.record(number)
        if number % 5 == 0:
            desk.write()
    desk.end()
    segments = [read(path) for path in logs_in(tmp_path)]
    assert len(segments) > 3
    assert [number for segment in segments for number in acts(segment)] == list(range(400))
    openings = [segment[0] for segment in segments]
    assert [each.segment for each in openings if isinstance(each, DoorOpened)] == list(range(len(segments)))
    assert all(each.is_whole for each in openings if isinstance(each, DoorOpened))
    assert [segment[-1].is_last for segment in segments if isinstance(segment[-1], Closed)] == [
        *[False] * (len(segments) - 1),
        True,
    ]


def test_a_segment_is_not_all_opening(tmp_path: Path) -> None:
    """The state of a large pool may be larger than a segment; then it must not be written with each step."""
    desk = Desk(tmp_path, RecordBounds(total_bytes=1_000_000, segment_bytes=1))
    for number in range(60):
        desk.record(number)
        desk.write()
    desk.end()
    assert 1 < len(logs_in(tmp_path)) < 15


def test_the_oldest_segments_go_when_all_are_too_large(tmp_path: Path) -> None:
    """Bounded memory holds for the disk, too. What is being written stays."""
    bounds = RecordBounds(total_bytes=10_000, segment_bytes=2_000)
    desk = Desk(tmp_path, bounds)
    for number in range(2_000):
        desk.record(number)
        desk.write()
        assert sum(path.stat().st_size for path in logs_in(tmp_path)) < 12_000
    desk.end()
    left = [read(path) for path in logs_in(tmp_path)]
    assert acts(left[-1])[-1] == 1_999
    kept = [number for segment in left for number in acts(segment)]
    assert kept == list(range(kept[0], 2_000))


def test_segments_of_earlier_runs_are_counted_and_those_of_others_are_not(tmp_path: Path) -> None:
    """A gateway that is restarted often must not fill the disk, nor delete its neighbour's logs."""
    earlier, other = tmp_path / "g0.a.door.000000.log", tmp_path / "g1.a.door.000000.log"
    for path in (earlier, other):
        path.write_bytes(b"x" * 9_000)
    desk = Desk(tmp_path, RecordBounds(total_bytes=10_000, segment_bytes=2_000))
    desk.record(*range(40))
    desk.write()
    desk.end()
    assert not earlier.exists()
    assert other.exists()


def test_when_too_much_waits_records_are_dropped_and_the_next_segment_says_so(tmp_path: Path) -> None:
    """A disk that hangs costs records, and neither memory nor time."""
    desk = Desk(tmp_path, RecordBounds())
    desk.record(*range(MOST_PENDING + 500))
    assert len(desk.log.pending) == MOST_PENDING
    desk.write()
    desk.record(-1)
    desk.end()
    first, second = logs_in(tmp_path)
    assert opening(first).is_whole
    assert acts(read(first)) == list(range(MOST_PENDING - 1))  # the opening waits, too
    assert not opening(second).is_whole
    assert acts(read(second)) == [-1]


def test_a_full_disk_drops_records_until_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording goes on by itself once there is room, and says that something is missing."""
    desk = Desk(tmp_path)
    desk.record(0, 1)
    with structlog.testing.capture_logs() as said, full_disk(monkeypatch, after_bytes=60):
        desk.write()
        for number in range(2, 50):
            desk.record(number)
            desk.write()
    assert [line["event"] for line in said] == ["recording failed, will be tried again"]
    desk.record(50)
    desk.write()
    assert logs_in(tmp_path) == []  # it is not yet time, and a part of an opening is of no use
    desk.now_us += int(RETRY_S * 1_000_000)
    desk.write()
    desk.record(51, 52)
    desk.write()
    desk.record(53)
    desk.end()
    (after,) = logs_in(tmp_path)
    assert not opening(after).is_whole
    assert acts(read(after)) == [51, 52, 53]
    assert desk.num_openings <= 3  # a state is not made again and again for a disk that is full


def test_a_disk_that_stays_full_is_not_filled_with_empty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more at every try would be thousands a day, and after them segments would seem to be missing."""
    desk = Desk(tmp_path)
    desk.record(0)
    desk.write()
    desk.log.wants_segment = True
    with full_disk(monkeypatch):
        for number in range(5):
            desk.record(number)
            desk.write()
            desk.now_us += int(RETRY_S * 1_000_000)
            desk.write()
    assert len(logs_in(tmp_path)) == 1
    desk.now_us += int(RETRY_S * 1_000_000)
    desk.write()
    desk.record(2)
    desk.end()
    _, after = logs_in(tmp_path)
    opened = opening(after)
    assert (opened.segment, opened.is_whole) == (1, False)


def test_what_a_failed_write_left_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is one on what lies on the disk, whether or not somebody can read it."""
    desk = Desk(tmp_path, RecordBounds(total_bytes=2_000, segment_bytes=1_000))
    with full_disk(monkeypatch, after_bytes=1_500):
        desk.record(0)
        desk.write()
        desk.record(*range(100))
        desk.write()
    assert [path.stat().st_size for path in logs_in(tmp_path)] == [1_500]
    desk.now_us += int(RETRY_S * 1_000_000)
    desk.write()
    desk.record(*range(20))
    desk.end()
    (after,) = logs_in(tmp_path)
    assert opening(after).segment == 1


def test_a_folder_that_was_cleared_away_is_made_again(tmp_path: Path) -> None:
    """Somebody deletes old logs, folder and all, while the gateway runs."""
    folder = tmp_path / "logs"
    folder.mkdir()
    desk = Desk(folder)
    desk.record(0)
    desk.write()
    shutil.rmtree(folder)
    desk.log.wants_segment = True
    desk.record(1)
    desk.end()
    (path,) = logs_in(folder)
    assert acts(read(path)) == [1]


def test_a_disk_that_fills_up_in_the_middle_leaves_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded before is worth as much as before; the next segment tells of the gap."""
    desk = Desk(tmp_path)
    with full_disk(monkeypatch, after_bytes=600):
        for number in range(30):
            desk.record(number)
            desk.write()
    desk.now_us += int(RETRY_S * 1_000_000)
    desk.write()
    desk.record(100)
    desk.end()
    cut, after = logs_in(tmp_path)
    entries = read_to_the_cut(cut)
    assert acts(entries) == list(range(len(entries) - 1))
    assert len(entries) > 2
    assert not opening(after).is_whole
    assert acts(read(after)) == [100]


def test_a_file_that_exists_already_is_never_written_over(tmp_path: Path) -> None:
    """Two gateways of one name would destroy each other's logs."""
    there = tmp_path / "g0.run.door.000000.log"
    there.write_bytes(b"precious")
    desk = Desk(tmp_path)
    desk.record(0)
    desk.write()
    desk.now_us += int(RETRY_S * 1_000_000)
    desk.write()
    desk.record(1)
    desk.end()
    assert there.read_bytes() == b"precious"
    assert acts(read(tmp_path / "g0.run.door.000001.log")) == [1]


def test_a_state_that_cannot_be_written_down_is_no_fault_of_the_driver() -> None:
    """Whatever goes wrong in making an opening, who decides goes on, unrecorded."""

    def broken() -> DoorOpened:
        raise TypeError("a scheduler's state holds a surprise")

    log = Log("g0.run.broken", broken)
    with structlog.testing.capture_logs() as said:
        for number in range(3):
            log.before()
            log.add(act(number))
    assert [line["log_level"] for line in said] == ["error"]
    assert not log.pending


def test_a_record_that_cannot_be_written_down_stops_no_other_log(tmp_path: Path) -> None:
    """The thread is shared: one log's fault must not end it."""
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=lambda: 0)
    desk = Desk(tmp_path)
    bad, good = recorder.log("bad", desk._opens), recorder.log("good", desk._opens)
    for log, entry in ((bad, replace(act(0), outcome="nonsense")), (good, act(1))):
        log.before()
        log.add(entry)
        log.close()
    recorder.close()
    assert acts(read(tmp_path / "g0.run.good.000000.log")) == [1]


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    """The last decisions before a shutdown are those that somebody will ask about."""
    recorder = Recorder(tmp_path, gateway_id="g0:8000", started="run", clock=lambda: 7)
    desk = Desk(tmp_path)
    log = recorder.log("door", desk._opens)
    log.before()
    log.add(act(1))
    recorder.close()
    (path,) = logs_in(tmp_path)
    assert path.name == "g0-8000.run.door.000000.log"
    assert acts(read(path)) == [1]


def test_a_folder_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    """A wrong path is a mistake to be told of at once, not in the log of a gateway that serves."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        Recorder(tmp_path / "file" / "logs", gateway_id="g0", started="run", clock=lambda: 0)
