"""A replay makes every plan again, and names the first that comes out otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.record.entries import LogEntry, Opened, Stepped
from admission.record.snapshot import SnapshotError, thaw
from admission.record.verify import Difference, DriverReplay, WrongLog
from tests.admission.record.recorded import Recording, busy_recording


def replay(segments: list[list[LogEntry]]) -> Difference | None:
    driver = DriverReplay()
    return next((found for segment in segments if (found := driver.segment(segment)) is not None), None)


def test_the_same_events_give_the_same_plans() -> None:
    """The promise that a log is worth keeping for."""
    recording = busy_recording()
    recording.end()
    driver = DriverReplay()
    assert [driver.segment(segment) for segment in recording.segments] == [None, None, None]
    covered = driver.covered()
    assert covered.plans == recording.scheduler._roster.next_step > 20
    assert covered.events > 40


@pytest.mark.parametrize("first", [0, 1, 2])
def test_each_segment_can_be_replayed_alone(first: int) -> None:
    """Old segments are deleted for space: what is left must not need them."""
    recording = busy_recording()
    recording.end()
    assert replay(recording.segments[first:]) is None


def test_a_plan_that_comes_out_otherwise_is_named_with_its_field() -> None:
    """Whoever changed the scheduler has to find out where its decisions part."""
    recording = busy_recording()
    index, stepped = next(
        (index, entry)
        for index, entry in enumerate(recording.segments[0])
        if isinstance(entry, Stepped) and entry.step.plan is not None and len(entry.step.plan.prefill) > 1
    )
    plan = stepped.step.plan
    assert plan is not None
    longer = replace(plan.prefill[1], length=plan.prefill[1].length + 1)
    other = replace(plan, prefill=(plan.prefill[0], longer, *plan.prefill[2:]))
    recording.segments[0][index] = replace(stepped, step=replace(stepped.step, plan=other))
    found = replay(recording.segments)
    assert found is not None
    assert (found.segment, found.record, found.plan) == (0, index, plan.step)
    assert found.field == "plan.prefill[1].length"
    assert (found.logged, found.replayed) == (longer.length, longer.length - 1)


def test_a_difference_names_the_events_that_went_in() -> None:
    """Step, event and field: what one needs to set a breakpoint."""
    recording = Recording()
    recording.claim("s0", prompt=3, output=2)
    index, stepped = next((i, e) for i, e in enumerate(recording.segments[0]) if isinstance(e, Stepped))
    recording.segments[0][index] = replace(stepped, step=replace(stepped.step, wake_at=5))
    found = replay(recording.segments)
    assert found is not None
    assert (found.events, found.field) == (("Claimed(s0)",), "wake_at")


def test_a_state_that_is_not_the_one_arrived_at_is_a_difference() -> None:
    """Between two segments nothing may be lost silently."""
    recording = busy_recording()
    opened = recording.segments[1][0]
    assert isinstance(opened, Opened)
    recording.segments[1][0] = replace(opened, state=Recording()._opened(is_whole=True).state)
    found = replay(recording.segments)
    assert found is not None
    assert (found.segment, found.record, found.field) == (1, 0, "state")


def test_steps_that_were_not_recorded_are_a_gap_and_no_difference() -> None:
    """When the disk does not keep up, the next segment opens with the state after what was missed."""
    recording = Recording()
    recording.claim("s0", prompt=3, output=6)
    recording.rotate()
    recording.report()
    recording.segments.pop()
    recording.rotate(is_whole=False)
    recording.run()
    assert replay(recording.segments) is None


def test_steps_without_a_state_are_refused() -> None:
    """A segment whose beginning is missing cannot be replayed, and must not seem to be."""
    recording = busy_recording()
    with pytest.raises(WrongLog, match="before the state"):
        replay([recording.segments[0][1:]])


@pytest.mark.parametrize("state", [b"", b"\x90", b"\x01", b"\x93\xa6object\xa9Scheduler\x90"])
def test_a_state_of_something_else_is_refused(state: bytes) -> None:
    """One exception, whatever is wrong with it."""
    with pytest.raises(SnapshotError):
        thaw(state)
