"""Drivers that followed one another are one place in a replay; drivers that were there at once are several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.limits import Limits
from admission.record.clocks import Clocks
from admission.record.entries import LogEntry, Opened, Stepped
from gateway.what_if_setup import Recorded, recorded
from tests.admission.record.doors import Door
from tests.admission.record.recorded import LIMITS, Recording

LARGER = replace(LIMITS, max_slots=5)
MODEL = "tiny"


def log_of(driver_id: str, begins_s: int, ends_s: int, limits: Limits = LIMITS) -> list[LogEntry]:
    """A driver that is there from one time to another, and whose last record is younger than its last step."""
    recording = Recording(limits=limits)
    recording.claim("a", prompt=1, output=1)
    recording.end()
    entries = recording.segments[0]
    assert isinstance(entries[0], Opened)
    entries[0] = replace(entries[0], driver_id=driver_id, opened_us=begins_s * 1_000_000, opened_unix_us=0)
    entries[0] = replace(entries[0], opened_unix_us=1_000_000 * (100 + begins_s))
    return [replace(entry, now_us=ends_s * 1_000_000) if isinstance(entry, Stepped) else entry for entry in entries]


def what_ran(*drivers: list[LogEntry]) -> Recorded:
    doors = [Door().entries]
    return recorded(drivers, doors, MODEL, Clocks([*drivers, *doors]))


@pytest.mark.parametrize(
    ("second", "drivers"),
    [
        (log_of("g1/w0", 10, 20), ["g0/w0"]),  # another gateway took the worker over
        (log_of("g0/w0", 10, 20, LARGER), ["g0/w0"]),  # the worker came back with more slots
        (log_of("g0/w1", 10, 20), ["g0/w0"]),  # the next run, whose sockets have other names
        (log_of("g0/w1", 10, 20, LARGER), ["g0/w0", "g0/w1"]),  # another worker: nobody says that it replaced the first
        (log_of("g1/w0", 9, 20), ["g0/w0", "g1/w0"]),  # two machines with a socket of the same name
    ],
)
def test_a_worker_counts_once_however_often_it_was_driven(second: list[LogEntry], drivers: list[str]) -> None:
    """Else a replay has more workers than there ever were, and serves what could not be served."""
    ran = what_ran(log_of("g0/w0", 0, 10), second)
    assert [name for name, _ in ran.drivers] == drivers
    assert ran.num_logged == 2


def test_a_place_is_taken_over_again_and_again() -> None:
    """A worker that restarts every minute is one worker all day."""
    ran = what_ran(*[log_of(f"g{number % 2}/w0", 10 * number, 10 * number + 9) for number in range(6)])
    assert [name for name, _ in ran.drivers] == ["g0/w0"]
