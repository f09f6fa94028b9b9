"""When a batch is formed: in every iteration, or held to the end of its last member."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.events import Plan
from admission.limits import Limits
from admission.presets import PRESETS, Batching
from admission.scheduler import Scheduler
from tests.admission.drive import Harness, make_spec

LIMITS = Limits(max_slots=8, token_budget=64, prefill_chunk=None)
OUTPUTS = (20, 45, 80, 120, 150, 90, 60, 200)
HELD = [name for name, preset in PRESETS.items() if preset.batching is not Batching.CONTINUOUS]
CONTINUOUS = [name for name, preset in PRESETS.items() if preset.batching is Batching.CONTINUOUS]


def working_plans(harness: Harness) -> list[Plan]:
    plans = [step.plan for _, _, step in harness.log if step.plan is not None]
    return [plan for plan in plans if plan.decode or plan.prefill]


def started_in(plan: Plan | None) -> list[str]:
    return [] if plan is None else [start.sequence_id for start in plan.starts]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("preset", HELD)
def test_a_held_batch_wastes_the_slots_of_those_that_end_early(preset: str, depth: int) -> None:
    """The published example: eight requests, 200 rounds, 1,600 slots, 765 useful, 835 wasted (52.19 %)."""
    harness = Harness(replace(LIMITS, max_in_flight=depth), PRESETS[preset])
    harness.claim(*(make_spec(f"r{n}", prompt=1, output=output) for n, output in enumerate(OUTPUTS)))
    late = [make_spec(f"late{n}", prompt=1, output=1) for n in range(8)]
    for spec in late:
        harness.claim(spec)
    harness.run_until_idle()
    plans = working_plans(harness)
    first_late = next(n for n, plan in enumerate(plans) if "late0" in started_in(plan))
    rounds = plans[:first_late]
    useful = sum(len(plan.decode) + len(plan.prefill) for plan in rounds)
    assert len(rounds) == 200
    assert len(rounds) * 8 == 1600
    assert useful == sum(OUTPUTS) == 765
    assert len(rounds) * 8 - useful == 835
    assert started_in(plans[first_late]) == [spec.sequence_id for spec in late]


@pytest.mark.parametrize("preset", CONTINUOUS)
def test_an_iteration_level_preset_refills_a_freed_slot_in_the_next_iteration(preset: str) -> None:
    """That, and nothing else, is what continuous batching adds."""
    harness = Harness(LIMITS, PRESETS[preset])
    harness.claim(
        *(make_spec(f"r{n}", prompt=1, output=output, score=n) for n, output in enumerate(OUTPUTS)),
        *(make_spec(f"late{n}", prompt=1, output=500, score=100 + n) for n in range(8)),
    )
    harness.run_until_idle()
    rounds = working_plans(harness)
    started = {name: n for n, plan in enumerate(rounds) for name in started_in(plan)}
    ends = sorted(OUTPUTS)  # the first runs from round 0 and emits in every one
    assert [started[f"late{n}"] for n in range(8)] == ends
    assert all(len(plan.decode) + len(plan.prefill) == 8 for plan in rounds[:501])


@pytest.mark.parametrize("preset", HELD)
def test_nothing_is_wanted_while_a_held_batch_runs(preset: str) -> None:
    """What is claimed early is withheld from workers that could run it, and from the bounds of the queue."""
    harness = Harness(LIMITS, PRESETS[preset])
    assert harness.scheduler.want().slots == 8
    step = harness.claim(make_spec("a", prompt=1, output=3), make_spec("b", prompt=1, output=1))
    assert (step.want.slots, step.want.weakest) == (0, None)
    harness.run_until_idle()
    assert harness.scheduler.want().slots == 8


def test_a_batch_is_gathered_until_its_oldest_has_waited_long_enough() -> None:
    """With nothing in flight no report would come: the core must say when it wants to be woken."""
    harness = Harness(replace(LIMITS, max_queue_delay_us=5), PRESETS["request-dynamic"])
    step = harness.claim(make_spec("a"))
    assert (step.plan, step.wake_at) == (None, 1 + 5)
    step = harness.claim(make_spec("b"))
    assert (step.plan, step.wake_at) == (None, 1 + 5)
    harness.step()
    harness.step()
    assert harness.step().plan is None
    step = harness.step()
    assert started_in(step.plan) == ["a", "b"]
    assert step.wake_at is None


def test_a_batch_of_a_preferred_size_does_not_wait() -> None:
    """The largest preferred size that can be filled starts at once; the rest waits for the next batch."""
    limits = replace(LIMITS, preferred_sizes=(2, 4), max_queue_delay_us=100)
    harness = Harness(limits, PRESETS["request-dynamic"])
    assert harness.claim(make_spec("a")).plan is None
    step = harness.claim(*(make_spec(name) for name in "bcde"))
    assert started_in(step.plan) == ["a", "b", "c", "d"]
    harness.run_until_idle()
    assert sorted(harness.ended) == ["a", "b", "c", "d", "e"]


def test_a_full_batch_does_not_wait_though_its_size_is_not_preferred() -> None:
    """Nobody else could join it."""
    limits = replace(LIMITS, max_slots=3, preferred_sizes=(8,), max_queue_delay_us=1_000)
    harness = Harness(limits, PRESETS["request-dynamic"])
    assert started_in(harness.claim(*(make_spec(name) for name in "abcd")).plan) == ["a", "b", "c"]


def test_a_deadline_that_comes_before_the_delay_is_when_the_core_wakes() -> None:
    """Both can fall due without an event; the earlier counts."""
    harness = Harness(replace(LIMITS, max_queue_delay_us=100), PRESETS["request-dynamic"])
    assert harness.claim(make_spec("a", deadline_us=7)).wake_at == 7
    assert harness.claim(make_spec("b", deadline_us=900)).wake_at == 7
    assert harness.cancel("a").wake_at == 2 + 100


@pytest.mark.parametrize("limits", [{"preferred_sizes": (4, 0)}, {"max_queue_delay_us": -1}])
def test_batches_of_nobody_and_delays_into_the_past_are_refused(limits: dict[str, object]) -> None:
    """A limit that cannot work is refused when it is set."""
    with pytest.raises(ValueError, match="preferred_sizes"):
        Scheduler(replace(LIMITS, **limits), PRESETS["request-dynamic"])
