"""The course of a driver in numbers: what an iteration took, whose tokens it gave, and where the log does not say."""

from __future__ import annotations

import pytest

from admission.events import EndReason
from admission.record.course import follow
from admission.record.entries import LogEntry
from tests.admission.record.recorded import Recording, busy_recording


def entries_of(recording: Recording, first: int = 0) -> list[LogEntry]:
    return [entry for segment in recording.segments[first:] for entry in segment]


def test_the_first_iteration_counts_from_its_plan_and_a_later_one_from_the_report_before() -> None:
    """The worker computes the next plan while a report travels; what lies between two reports is what one takes."""
    recording = Recording()
    recording.claim("a", prompt=3, output=4)  # at 10, and with two plans on their way
    recording.report()  # at 10: the log has the time before the step that takes it in
    recording.report()
    recording.run()
    course = follow(entries_of(recording))
    assert course is not None
    assert [timed.took_us for timed in course.iterations[:3]] == [0, 10, 10]
    assert [timed.busy_us for timed in course.iterations[:3]] == [7, 7, 7]
    assert len(course.paths["a"].tokens_us) == 4
    assert course.paths["a"].end is EndReason.LENGTH


def test_a_sequence_that_stopped_gets_nothing_of_plans_that_were_on_their_way() -> None:
    """They name its slot, but the worker has found its end."""
    recording = Recording()
    recording.claim("a", prompt=3, output=9)
    recording.report()
    recording.report(0)
    recording.run()
    course = follow(entries_of(recording))
    assert course is not None
    assert len(course.paths["a"].tokens_us) == 2
    assert course.paths["a"].end is EndReason.STOP
    assert len(course.iterations) == 2


def test_segments_that_follow_each_other_are_one_course() -> None:
    """Rotation is no event."""
    whole = follow(entries_of(busy_recording()))
    assert whole is not None
    assert whole.num_unclear == 0
    assert not any(path.is_partial for path in whole.paths.values())


@pytest.mark.parametrize("first", [1, 2])
def test_a_log_that_begins_in_the_middle_leaves_out_what_it_does_not_know(first: int) -> None:
    """How much a sequence attends to is not known when its beginning is not there."""
    recording = busy_recording()
    whole, part = follow(entries_of(recording)), follow(entries_of(recording, first))
    assert whole is not None
    assert part is not None
    assert part.num_unclear > 0
    assert any(path.is_partial for path in part.paths.values())
    clear = {timed.step: timed.work for timed in whole.iterations}
    assert all(clear[timed.step] == timed.work for timed in part.iterations[1:])


def test_a_missing_segment_is_a_gap() -> None:
    """What follows is read from the state that it opens with."""
    recording = busy_recording()
    del recording.segments[1]
    course = follow(entries_of(recording))
    assert course is not None
    assert course.num_unclear > 0


def test_a_door_has_no_course() -> None:
    """Nothing runs at a door."""
    assert follow([]) is None
