"""Files are put together to logs, and what is missing or damaged is said."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from admission.record.framing import MAGIC
from gateway.log_files import BadLog, read_logs, read_segment, remarks
from tests.admission.record.recorded import busy_recording
from tests.gateway.logs_on_disk import flip, simulate_baseline, write_recording


def test_segments_of_a_log_are_in_order_whatever_the_files_come_in(tmp_path: Path) -> None:
    """A shell lists files by name, a backup in any order."""
    paths = write_recording(tmp_path)
    logs = read_logs(reversed(paths))
    (segments,) = logs.drivers
    assert [segment.path for segment in segments] == paths
    assert logs.doors == ()
    assert remarks(segments) == []


def test_runs_of_a_gateway_in_one_folder_are_logs_of_their_own(tmp_path: Path) -> None:
    """A restart begins anew: its segments do not follow those of the run before."""
    write_recording(tmp_path, name="g0.20261129T1.driver-w0-1")
    later = busy_recording()
    later.segments = [[replace(opened, opened_unix_us=9_000_000), *rest] for opened, *rest in later.segments]
    write_recording(tmp_path, later, name="g0.20261129T2.driver-w0-2")
    logs = read_logs([tmp_path])
    assert [len(segments) for segments in logs.drivers] == [3, 3]


def test_a_door_is_told_from_a_driver(tmp_path: Path) -> None:
    """By what is in the file, not by its name."""
    logs = read_logs([simulate_baseline(tmp_path)])
    assert (len(logs.drivers), len(logs.doors)) == (1, 1)


@pytest.mark.parametrize("place", [3, 30, 400, -1])
def test_a_flipped_byte_refuses_the_file(tmp_path: Path, place: int) -> None:
    """None of it can be trusted."""
    path = write_recording(tmp_path)[1]
    flip(path, place)
    with pytest.raises(BadLog, match=path.name):
        read_logs([tmp_path])


@pytest.mark.parametrize("size", [0, 4, len(MAGIC) + 9])
def test_a_file_without_a_whole_record_is_left_out(tmp_path: Path, size: int) -> None:
    """A gateway can be killed in the moment in which it begins a file: the rest of the folder is as good as before."""
    paths = write_recording(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:size])
    logs = read_logs([tmp_path])
    (segments,) = logs.drivers
    assert [segment.path for segment in segments] == paths[:2]
    assert logs.remarks() == [
        f"{paths[1].name} is not the last: what came after it is not here",
        f"{paths[2].name} ends before its first record",
    ]


def test_files_without_any_record_are_refused(tmp_path: Path) -> None:
    """An empty answer would look like a quiet day."""
    path = tmp_path / "g0.run.door.000000.log"
    path.write_bytes(b"")
    with pytest.raises(BadLog, match="not one whole record"):
        read_logs([path])


def test_a_log_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Its last seconds are what somebody wants to see who looks at a crash."""
    path = write_recording(tmp_path)[2]
    segment = read_segment(path)
    assert segment is not None
    whole = segment.entries
    path.write_bytes(path.read_bytes()[:-40])
    cut = read_segment(path)
    assert cut is not None
    assert (cut.is_cut, cut.is_last) == (True, False)
    assert cut.entries == whole[: len(cut.entries)]
    assert 0 < len(cut.entries) < len(whole)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Deleted for space, left out, cut: each is another reason to look further."""
    first, second, third = write_recording(tmp_path)
    (segments,) = read_logs([second, third]).drivers
    assert remarks(segments) == [
        f"{second.name} is the first that is here: what came before it was deleted, or left out"
    ]
    third.write_bytes(third.read_bytes()[:-3])
    (segments,) = read_logs([first, third]).drivers
    assert remarks(segments) == [
        f"there are segments missing between {first.name} and {third.name}",
        f"{third.name} ends without its end: its writer was killed, failed, or is still writing",
    ]


def test_a_first_segment_that_is_not_whole_says_so(tmp_path: Path) -> None:
    """The disk was full when the gateway began: number 0 is not the beginning."""
    recording = busy_recording()
    opened, *rest = recording.segments[0]
    recording.segments[0] = [replace(opened, is_whole=False), *rest]  # type: ignore[call-arg]
    paths = write_recording(tmp_path, recording)
    assert read_logs([tmp_path]).remarks() == [
        f"some steps before {paths[0].name} were not recorded, as the disk did not keep up"
    ]


def test_a_file_counts_once_however_it_is_named(tmp_path: Path) -> None:
    """By its folder, by a link to it, by a link to the folder, by a detour."""
    (tmp_path / "logs").mkdir()
    paths = write_recording(tmp_path / "logs")
    (tmp_path / "link.log").symlink_to(paths[1])
    (tmp_path / "linked").symlink_to(tmp_path / "logs")
    detour = tmp_path / "logs" / ".." / "logs" / paths[2].name
    logs = read_logs([tmp_path / "logs", tmp_path / "link.log", tmp_path / "linked", detour])
    assert [len(segments) for segments in logs.drivers] == [3]
    assert logs.remarks() == []


def test_a_copy_of_a_segment_is_refused(tmp_path: Path) -> None:
    """Every request in it would count twice."""
    paths = write_recording(tmp_path)
    copy = tmp_path / "saved.log"
    copy.write_bytes(paths[0].read_bytes())
    with pytest.raises(BadLog, match=r"saved\.log is a copy of .*000000\.log"):
        read_logs([tmp_path])


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe would be read for ever, and so would a device."""
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(BadLog, match=r"pipe\.log: this is no file"):
        read_logs([tmp_path])


def test_a_file_of_something_else_is_not_read_to_its_end(tmp_path: Path) -> None:
    """It may be larger than the memory; its first bytes tell."""
    path = tmp_path / "core.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadLog, match=r"core\.log: this is no log of this version"):
        read_logs([path])


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_path_without_a_log_is_refused(tmp_path: Path, name: str) -> None:
    """A typing mistake."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadLog, match=name):
        read_logs([tmp_path / name])
