"""The doors' acts are checked as far as logs tell of them; what cannot be known is not held against the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from admission.queue import Offered
from admission.record.entries import Closed, LogEntry, OfferMade
from gateway.log_files import read_logs
from gateway.queue_replay import check_queues
from tests.admission.record.doors import Door
from tests.admission.record.recorded import as_bytes
from tests.gateway.logs_on_disk import write_recording

END = Closed(now_us=9, num_records=9, is_last=True)


class Doors:
    """Two doors at one queue of two places, in which b waits. ``clients`` makes offers as a store would answer them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        acts = [1_000]
        self.one, self.other = Door("g0", acts=acts), Door("g1", acts=acts)
        self.waiting = 0

    def offer(self, door: Door, name: str) -> None:
        is_full = self.waiting == 2
        self.waiting += not is_full
        door.offer(name, 5, Offered.QUEUE_FULL if is_full else Offered.QUEUED)
        offer = door.entries[-1]
        assert isinstance(offer, OfferMade)
        door.entries[-1] = replace(offer, waiting_requests=self.waiting, waiting_tokens=8 * self.waiting)

    def withdraw(self, door: Door, name: str) -> None:
        self.waiting -= 1
        door.withdraw(name, 6)

    def write(self, door: Door, *end: LogEntry) -> Path:
        path = self.folder / f"{door.gateway_id}.run.door.000000.log"
        path.write_bytes(as_bytes([*door.entries, *end]))
        return path

    def check(self) -> tuple[bool, list[str]]:
        return check_queues(read_logs([self.folder]))


@pytest.fixture
def doors(tmp_path: Path) -> Doors:
    return Doors(tmp_path)


def test_two_whole_logs_are_checked_to_their_ends(doors: Doors) -> None:
    """Each knows what the other did not do."""
    for door, name in ((doors.one, "a"), (doors.other, "b"), (doors.one, "c")):
        doors.offer(door, name)
    doors.write(doors.one, END)
    doors.write(doors.other, END)
    is_same, lines = doors.check()
    assert is_same
    assert lines[0] == "queue of tiny: all is the same in 3 acts, with what waits after each"
    assert not any("goes" in line for line in lines)


def test_a_log_that_was_cut_is_followed_as_far_as_it_goes(doors: Doors) -> None:
    """A killed gateway went on for a moment: what the others found then is no fault of the rule."""
    doors.offer(doors.one, "a")
    doors.offer(doors.other, "b")
    whole = list(doors.other.entries)
    doors.withdraw(doors.other, "b")  # was not written any more
    doors.other.entries = whole
    doors.offer(doors.one, "c")
    doors.write(doors.one, END)
    path = doors.write(doors.other)
    is_same, lines = doors.check()
    assert is_same
    assert lines[0] == "queue of tiny: all is the same in 2 acts, with what waits after each"
    assert lines[-1] == f"  as far as {path.name} goes: what its gateway did then is not known"


def test_what_comes_out_otherwise_before_a_cut_is_a_difference(doors: Doors) -> None:
    """A log that is cut somewhere excuses nothing that is in it."""
    doors.waiting = 1  # the store said so, and it is not true
    doors.offer(doors.one, "a")
    doors.write(doors.one)
    is_same, lines = doors.check()
    assert not is_same
    assert lines[0] == "queue of tiny: 2 differences"


def test_a_store_that_lost_its_data_begins_with_an_empty_queue(doors: Doors) -> None:
    """What had waited is gone: the places are free, and nobody takes that for a mistake of the rule."""
    doors.offer(doors.one, "a")
    doors.offer(doors.one, "b")
    doors.one.acts[0], doors.waiting = 5_000_000, 0
    doors.offer(doors.one, "c")
    doors.write(doors.one, END)
    is_same, lines = doors.check()
    assert is_same
    assert lines[0].startswith("queue of tiny: all is the same in 2 acts")
    assert lines[3].startswith("queue of tiny, in a new store: all is the same in 1 act")


def test_a_driver_whose_gateway_has_no_door_here_prevents_the_check(doors: Doors) -> None:
    """That gateway had clients, too, and what they offered is not known."""
    doors.offer(doors.other, "a")
    doors.write(doors.other, END)
    write_recording(doors.folder)  # of g0
    is_same, lines = doors.check()
    assert is_same
    assert lines == ["queue: not checked: there is no log of the door of g0 in these files"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_hole_in_a_door_prevents_the_check(doors: Doors, damage: Callable[[Path], None]) -> None:
    """What waited after it is not known."""
    doors.offer(doors.one, "a")
    first = doors.write(doors.one, replace(END, is_last=False))
    opened, *_ = doors.one.entries
    second = [replace(opened, segment=1), END]  # type: ignore[call-arg]
    (doors.folder / "g0.run.door.000001.log").write_bytes(as_bytes(second))
    damage(first)
    is_same, (line,) = doors.check()
    assert is_same
    assert line.startswith("queue: not checked: g0.run.door.000001.log does not follow what is there")
