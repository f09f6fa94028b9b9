"""Clocks that differ are found out by the numbers of the acts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.record.clocks import Clocks
from admission.record.entries import DoorOpened
from admission.record.skew import Skew, skew
from tests.admission.record.doors import Door


def skew_of(by_us: int) -> Skew | None:
    """Of two gateways that act in turns, the second with its clock set so much ahead."""
    one, other = Door("g0"), Door("g1")
    other.acts = one.acts
    opened = other.entries[0]
    assert isinstance(opened, DoorOpened)
    other.entries[0] = replace(opened, opened_unix_us=opened.opened_unix_us + by_us)
    for turn in range(6):
        (one, other)[turn % 2].offer(f"s{turn}", 1_000 * turn)
    logs = [one.entries, other.entries]
    return skew(logs, Clocks(logs))


@pytest.mark.parametrize(("by_us", "ahead"), [(60_000_000, "g1"), (-60_000_000, "g0")])
def test_a_clock_that_is_wrong_is_told(by_us: int, ahead: str) -> None:
    """Else what one gateway did would be told as if it had come long before what it followed."""
    found = skew_of(by_us)
    assert found is not None
    assert found.ahead == ahead
    assert 59_900_000 < found.least_us <= 60_000_000


@pytest.mark.parametrize("by_us", [0, 300_000, -300_000])
def test_clocks_that_agree_about_are_not(by_us: int) -> None:
    """Replies take their time, and no two clocks are one."""
    assert skew_of(by_us) is None
