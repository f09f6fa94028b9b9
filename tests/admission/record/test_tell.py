"""The story that is put together from a log is what the driver did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.events import EndReason, Exchanged, PauseReason, WorkerLost
from admission.record.entries import LogEntry, Opened, Stepped
from admission.record.story import Hold, Part, Story
from admission.record.tell import NoStory, tell
from tests.admission.drive import make_spec
from tests.admission.record.recorded import LIMITS, Recording, busy_recording


def story_of(*segments: list[LogEntry]) -> Story:
    return tell([entry for segment in segments for entry in segment])


def test_every_token_of_every_plan_is_in_a_life() -> None:
    """Nothing that ran may be missing from what is told, whatever was preempted, cancelled or stopped."""
    recording = busy_recording()
    recording.end()
    story = story_of(*recording.segments)
    steps = [entry.step for segment in recording.segments for entry in segment if isinstance(entry, Stepped)]
    plans = [step.plan for step in steps if step.plan is not None]
    runs = [run for life in story.lives.values() for run in life.runs]
    prefill = sum(span.length for plan in plans for span in plan.prefill)
    assert sum(run.tokens for run in runs if run.part is Part.PREFILL) == prefill > 0
    assert sum(run.tokens for run in runs if run.part is Part.DECODE) == sum(len(plan.decode) for plan in plans) > 0
    assert [beat.plan for beat in story.beats] == [plan for plan in plans if plan.decode or plan.prefill]
    assert all(life.end is not None for life in story.lives.values())
    assert {life.end.reason for life in story.lives.values() if life.end} >= {EndReason.LENGTH, EndReason.CANCELLED}


def test_a_life_goes_from_claim_to_end() -> None:
    """One sequence that has the worker to itself."""
    recording = Recording()
    recording.claim("s0", prompt=6, output=3)
    recording.run()
    recording.end()
    life = story_of(*recording.segments).lives["s0"]
    assert [(begin.slot, begin.kept) for begin in life.begins] == [(0, 0)]
    assert [(run.part, run.tokens, run.emits) for run in life.runs] == [
        (Part.PREFILL, 6, True),
        (Part.DECODE, 2, False),
    ]
    assert [claim.held_by for claim in life.claims] == [None]
    assert life.end is not None
    assert life.end.reason is EndReason.LENGTH
    assert life.found_us is None


def test_what_was_planned_after_a_stop_is_no_part_of_a_life() -> None:
    """The next plan is on its way before anybody knows of the stop, and gives no token: nor may a story."""
    recording = Recording()
    recording.claim("s0", prompt=4, output=9)
    recording.claim("s1", prompt=4, output=9)
    recording.run_for(2)
    assert len(recording.in_flight) == 2
    recording.report(0)
    recording.run()
    recording.end()
    story = story_of(*recording.segments)
    assert tokens_of(story, "s0") == 3
    assert tokens_of(story, "s1") == 9
    end = story.lives["s0"].end
    assert end is not None
    assert end.reason is EndReason.STOP


def test_a_stop_in_the_prefill_leaves_no_decode() -> None:
    """The whole run that followed never was."""
    recording = Recording()
    recording.claim("s0", prompt=4, output=9)
    recording.report(0)
    recording.run()
    recording.end()
    life = story_of(*recording.segments).lives["s0"]
    assert [(run.part, run.tokens, run.emits) for run in life.runs] == [(Part.PREFILL, 4, True)]


@pytest.mark.parametrize("events", [(WorkerLost(),), ()])
def test_what_was_on_its_way_to_a_lost_worker_is_no_part_of_a_life(events: tuple[WorkerLost, ...]) -> None:
    """It goes on elsewhere with the tokens that were reported. A driver may be told of the loss, or just stop."""
    recording = Recording()
    recording.claim("s0", prompt=4, output=9)
    recording.claim("s1", prompt=9, output=9)
    recording.run_for(3)
    assert len(recording.in_flight) == 2
    if events:
        recording.step(*events)
    recording.end()
    story = story_of(*recording.segments)
    assert tokens_of(story, "s0") == 3
    assert [(run.part, run.tokens, run.emits) for run in story.lives["s1"].runs] == [(Part.PREFILL, 4, False)]


def tokens_of(story: Story, name: str) -> int:
    return sum([run.tokens if run.part is Part.DECODE else run.emits for run in story.lives[name].runs])


def test_what_kept_a_claimed_sequence_from_starting_is_told() -> None:
    """Somebody will ask why it waited although it had been given to a driver."""
    recording = Recording(limits=replace(LIMITS, kv_blocks=30))
    for number in range(3):
        recording.claim(f"s{number}", prompt=3, output=9)
    recording.run_for(2)
    recording.claim("s3", prompt=3, output=9)
    recording.run()
    recording.end()
    story = story_of(*recording.segments)
    assert story.lives["s3"].claims[0].held_by is Hold.SLOTS


def test_a_newcomer_that_takes_a_slot_is_named_by_its_victim() -> None:
    """Preempted by whom."""
    recording = Recording(limits=replace(LIMITS, kv_blocks=30))
    for number in range(3):
        recording.claim(f"s{number}", prompt=3, output=9, rank=2)
    recording.report()
    recording.step(Exchanged(sequence=make_spec("first", prompt=2, output=2, rank=0), victim_id="s1"))
    recording.run()
    recording.end()
    story = story_of(*recording.segments)
    (pause,) = story.lives["s1"].pauses
    assert (pause.by, pause.reason) == ("first", PauseReason.SLOT)
    assert story.lives["s1"].is_paused
    assert story.lives["first"].end is not None


def test_an_exchange_that_crossed_its_victims_end_preempts_nobody() -> None:
    """The victim keeps its course, and so must its story."""
    recording = Recording()
    recording.claim("s0", prompt=3, output=1, rank=2)
    recording.step(Exchanged(sequence=make_spec("first", prompt=2, output=2, rank=0), victim_id="s0"))
    recording.run()
    recording.end()
    life = story_of(*recording.segments).lives["s0"]
    assert life.pauses == []
    assert life.end is not None
    assert life.end.reason is EndReason.LENGTH


@pytest.mark.parametrize("first", [1, 2])
def test_a_story_can_begin_in_the_middle(first: int) -> None:
    """Old segments are deleted: what runs then, and what was claimed and had not started, is there all the same."""
    recording = busy_recording()
    recording.end()
    whole, later = story_of(*recording.segments), story_of(*recording.segments[first:])
    opened = recording.segments[first][0]
    assert isinstance(opened, Opened)
    found = [name for name, life in later.lives.items() if life.found_us is not None]
    assert found
    assert all(later.lives[name].found_us == opened.opened_us for name in found)
    ends = {name: (life.end.at_us, life.end.reason) for name, life in whole.lives.items() if life.end is not None}
    for name, life in later.lives.items():
        assert life.end is not None
        assert (life.end.at_us, life.end.reason) == ends[name]
    assert [beat.plan for beat in later.beats] == [beat.plan for beat in whole.beats][-len(later.beats) :]


def test_a_story_goes_on_after_a_gap() -> None:
    """What was not recorded is not made up: no run spans the gap, and who was there knows of it."""
    recording = Recording(limits=replace(LIMITS, kv_blocks=30))
    recording.claim("s0", prompt=3, output=12)
    recording.claim("s1", prompt=3, output=2)
    recording.run_for(3)
    recording.rotate()
    recording.run_for(3)
    recording.segments.pop()
    recording.rotate(is_whole=False)
    recording.run()
    recording.end()
    story = story_of(*recording.segments)
    (gap,) = story.gaps
    assert gap.from_us < gap.to_us
    assert story.lives["s0"].missed == [gap]
    decoded = [run for run in story.lives["s0"].runs if run.part is Part.DECODE]
    assert len(decoded) == 2
    assert sum(run.tokens for run in decoded) < 11
    assert story.lives["s0"].end is not None


def test_a_segment_that_was_left_out_is_a_gap() -> None:
    """Its number says so, also when nothing failed."""
    recording = busy_recording()
    recording.end()
    story = story_of(recording.segments[0], recording.segments[2])
    assert len(story.gaps) == 1
    assert story.stopped_us is not None


def test_a_log_that_ends_early_has_a_driver_that_may_still_run() -> None:
    """Killed, or being written: nothing is said of an end."""
    recording = busy_recording()
    story = story_of(*recording.segments)
    assert story.stopped_us is None


def test_a_log_without_a_beginning_has_no_story() -> None:
    """There is nothing to follow it from."""
    with pytest.raises(NoStory):
        tell(busy_recording().segments[0][1:])
