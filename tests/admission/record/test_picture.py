"""A picture shows what happened: every run a bar, every wait, every refusal."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from admission.queue import Offered
from admission.record.clocks import Clocks
from admission.record.entries import Executed, LogEntry
from admission.record.picture import picture
from admission.record.story import Part
from admission.record.tell import tell
from tests.admission.record.doors import Door
from tests.admission.record.golden import golden_logs
from tests.admission.record.recorded import Recording, busy_recording


def test_the_baseline_scenario_is_drawn_as_it_ran() -> None:
    """Six requests that anybody can follow by hand."""
    drawn = golden_logs().picture()
    (driver,) = drawn.drivers
    bars = [(bar.sequence_id, bar.slot, bar.part, bar.first, bar.last) for bar in driver.bars]
    assert bars[:4] == [
        ("A", 0, Part.PREFILL, 0, 0),
        ("B", 1, Part.PREFILL, 0, 1),
        ("C", 0, Part.PREFILL, 1, 1),
        ("D", 0, Part.PREFILL, 2, 3),
    ]
    assert [(mark.name, mark.at, mark.slot, mark.by) for mark in driver.preemptions] == [("A", 1, 0, "C")]
    assert [(wait.sequence_id, wait.begins, wait.ends) for wait in drawn.waits] == [("A", 1, 3), ("E", 2, 5)]
    assert [(mark.name, mark.at, mark.text) for mark in drawn.rejections] == [("F", 2, "refused: queue_full")]
    assert drawn.queue_bound == 2


@pytest.mark.parametrize("delay_us", [0, 40])
def test_bars_of_a_slot_never_overlap(delay_us: int) -> None:
    """Also when two reports came at once, or late: a worker computes one plan after the other."""
    recording = busy_recording()
    recording.end()
    log: list[LogEntry] = [entry for segment in recording.segments for entry in segment]
    log = [
        replace(entry, now_us=(entry.now_us // 30) * 30 + delay_us, busy_us=25)
        if isinstance(entry, Executed)
        else entry
        for entry in log
    ]
    (driver,) = picture([tell(log)], [], Clocks([log])).drivers
    slots = {bar.slot for bar in driver.bars}
    assert len(slots) == 3
    for slot in slots:
        lane = [bar for bar in driver.bars if bar.slot == slot]
        assert all(one.begins < one.ends <= other.begins for one, other in pairwise(lane))
    assert all(one.ends <= other.begins for one, other in pairwise(driver.levels))


def test_levels_are_within_their_limits() -> None:
    """A chart that shows more than there is would be doubted, rightly."""
    recording = busy_recording()
    recording.end()
    log = [entry for segment in recording.segments for entry in segment]
    (driver,) = picture([tell(log)], [], Clocks([log])).drivers
    assert driver.kv_total is not None
    assert driver.token_budget is not None
    for level in driver.levels:
        assert level.decode + level.prefill + (level.unused_budget or 0) == driver.token_budget
        assert 0 < level.slots <= driver.max_slots
        assert 0 < level.kv_blocks <= driver.kv_total


def test_what_still_waits_at_the_end_is_drawn_to_the_end() -> None:
    """It is the queue that somebody looks at who has trouble now."""
    door, recording = Door(), Recording()
    recording.claim("s0", prompt=4, output=4)
    recording.run()
    door.offer("a", 10)
    logs = [door.entries, recording.segments[0]]
    drawn = picture([tell(recording.segments[0])], [door.entries], Clocks(logs))
    assert [(wait.sequence_id, wait.ends) for wait in drawn.waits] == [("a", drawn.drivers[0].levels[-1].ends)]


def test_refusals_of_every_kind_are_marked() -> None:
    """At the queue and before it; one that was refused at the queue is marked once."""
    door = Door()
    door.offer("a", 10, Offered.QUEUE_FULL)
    door.answer("a", 12, "queue_full", 429)
    door.answer("b", 15, "context_length_exceeded", 400)
    door.answer("c", 17, "completed", 200)
    drawn = picture([], [door.entries], Clocks([door.entries]))
    assert [(mark.name, mark.text) for mark in drawn.rejections] == [
        ("a", "refused: queue_full"),
        ("b", "refused: context_length_exceeded"),
    ]


def test_a_run_in_which_nothing_ran_has_an_axis() -> None:
    """Its marks would be parts of a microsecond, one over the other."""
    door = Door()
    assert picture([], [door.entries], Clocks([door.entries])).ends == 1_000
