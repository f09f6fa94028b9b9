"""Sharing of KV blocks between sequences with equal prefixes. The harness checks that nobody reads other tokens' KV."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.events import EndReason, Start
from admission.limits import Limits
from admission.planner import MOST_PASSES
from admission.presets import SLUICEGATE, VLLM_V1, PrefixReuse, Preset, Progress, preset
from tests.admission.drive import Harness, make_spec

LIMITS = Limits(max_slots=8, token_budget=64, prefill_chunk=None, kv_blocks=32, block_size=4, max_in_flight=2)


def harness(rule: Preset = SLUICEGATE, *, blocks: int = 32, slots: int = 8, depth: int = 2) -> Harness:
    return Harness(replace(LIMITS, kv_blocks=blocks, max_slots=slots, max_in_flight=depth), rule)


def start_of(run: Harness, sequence_id: str) -> Start:
    """How it started last; plans are reported until it has."""
    for _ in range(100):
        starts = [start for _, _, step in run.log if step.plan for start in step.plan.starts]
        found = [start for start in starts if start.sequence_id == sequence_id]
        if found and sequence_id not in run.waiting:
            return found[-1]
        run.report() if run.in_flight else run.step()
    raise AssertionError(f"{sequence_id} does not start")


def displace(run: Harness, victim: str) -> None:
    """Take its slot for a short one of a better class, and bring it back."""
    run.exchange(make_spec("urgent", prompt=4, output=1, rank=0), victim)
    while "urgent" not in run.ended:
        run.report() if run.in_flight else run.step()


def test_a_prompt_seen_before_is_computed_from_where_it_differs() -> None:
    """The system prompt of an application is the same in every request: computing it once is the point."""
    run = harness()
    run.claim(make_spec("first", prompt=10, family="app"))
    run.run_until_idle()
    run.claim(make_spec("second", prompt=15, family="app"))
    assert start_of(run, "second").computed_tokens == 8
    assert run.in_flight[-1].prefill[0].start == 8
    run.run_until_idle()


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """Its logits are what the first output token is drawn from; a prompt of full blocks leaves one to compute."""
    run = harness()
    run.claim(make_spec("first", prompt=8, family="app"))
    run.run_until_idle()
    run.claim(make_spec("second", prompt=8, family="app"))
    assert start_of(run, "second").computed_tokens == 4
    run.run_until_idle()


def test_a_block_is_shared_only_when_the_plan_that_fills_it_is_reported() -> None:
    """Until then it is a promise: the sequence that fills it may fail."""
    run = harness(VLLM_V1)
    run.claim(make_spec("first", prompt=9, family="app"))
    run.claim(make_spec("early", prompt=9, family="app"))
    assert start_of(run, "early").computed_tokens == 0
    run.report()
    run.claim(make_spec("late", prompt=9, family="app"))
    assert start_of(run, "late").computed_tokens == 8
    run.run_until_idle()


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    """A burst behind one system prompt, or the choices of one request: the others wait for the first."""
    run = harness()
    run.claim(*(make_spec(f"choice{n}", prompt=21, output=2, family="app") for n in range(4)))
    assert run.scheduler.running_ids() == ("choice0",)
    assert [start_of(run, f"choice{n}").computed_tokens for n in range(4)] == [0, 20, 20, 20]
    assert run.scheduler.kv_blocks_in_use == 5 + 4  # five full blocks for all, one for each to write in
    run.run_until_idle()


@pytest.mark.parametrize("name", ["static", "request-dynamic", "orca", "sarathi", "tutorial"])
def test_engines_without_a_prefix_cache_compute_every_prompt(name: str) -> None:
    """A preset says what the engine did, not what it could have done."""
    run = harness(preset(name))
    run.claim(make_spec("first", prompt=12, family="app"))
    run.run_until_idle()
    run.claim(make_spec("second", prompt=12, family="app"))
    assert start_of(run, "second").computed_tokens == 0
    run.run_until_idle()


def test_shared_blocks_cost_a_newcomer_nothing() -> None:
    """Admission counts memory, not tokens: ten requests behind one long prompt fit where two would."""
    run = harness(blocks=12, depth=1)
    run.claim(make_spec("first", prompt=32, output=9, expected=9, family="app"))
    run.report()
    run.claim(make_spec("second", prompt=33, output=4, family="app"))
    assert start_of(run, "second").computed_tokens == 32
    assert run.scheduler.kv_blocks_in_use == 8 + 1 + 1
    run.run_until_idle()


def test_one_that_was_preempted_finds_what_it_had_computed_output_included() -> None:
    """Recomputation costs nothing for blocks that nobody has overwritten."""
    run = harness(depth=1, slots=1)
    run.claim(make_spec("batch", prompt=9, output=30, rank=2, score=5))
    for _ in range(8):
        run.report()
    displace(run, "batch")
    run.resume("batch")
    start = start_of(run, "batch")
    known = 9 + run.tokens["batch"]
    assert start.computed_tokens == (known - 1) // 4 * 4
    run.run_until_idle()
    assert run.tokens["batch"] == 30


def test_names_of_its_own_are_forgotten_with_a_sequence() -> None:
    """Nobody else can look for them; kept, they would push out what others can use."""
    run = harness(blocks=8, slots=1, depth=1)
    run.claim(make_spec("shared", prompt=8, output=1, family="app"))
    run.run_until_idle()
    run.claim(make_spec("batch", prompt=9, output=8, rank=2, score=5))
    run.report()
    displace(run, "batch")
    run.cancel("batch")
    run.run_until_idle()
    run.claim(make_spec("other", prompt=20, output=4))  # six blocks: blank ones are enough
    assert start_of(run, "other").computed_tokens == 0
    run.run_until_idle()
    run.claim(make_spec("again", prompt=9, family="app"))
    assert start_of(run, "again").computed_tokens == 8
    run.run_until_idle()


def test_what_a_failed_sequence_computed_is_used_by_nobody() -> None:
    """A worker that could not go on wrote nobody knows what; also when the sequence had been cancelled meanwhile."""
    for wanted in (True, False):
        run = harness(replace(SLUICEGATE, prefix_reuse=PrefixReuse.SHARED))
        run.claim(make_spec("broken", prompt=13, output=9, family="app"))
        run.report()
        if not wanted:
            run.cancel("broken")
        run.report(fail=(0,))
        assert run.ended["broken"].reason is (EndReason.FAILED if wanted else EndReason.CANCELLED)
        run.claim(make_spec("next", prompt=13, family="app"))
        assert start_of(run, "next").computed_tokens == 0
        run.run_until_idle()


def test_who_waits_for_a_prefix_is_passed_a_few_times_only() -> None:
    """Those behind need not wait with it, but slots must not all be gone when its prefix is there."""
    limits = replace(LIMITS, max_slots=16, token_budget=16, prefill_chunk=1, kv_blocks=200, max_in_flight=1)
    run = Harness(limits, SLUICEGATE)
    run.claim(make_spec("other", prompt=1, output=40))  # or the leader, alone, would not be cut into chunks
    run.claim(make_spec("leader", prompt=12, score=0, family="app"))
    run.claim(make_spec("waits", prompt=12, score=1, family="app"))
    for number in range(MOST_PASSES + 3):
        run.claim(make_spec(f"late{number}", prompt=1, output=40, score=2 + number))
        run.report()
    running = run.scheduler.running_ids()
    assert "waits" not in running
    assert [name for name in running if name.startswith("late")] == [f"late{n}" for n in range(MOST_PASSES)]
    run.run_until_idle()


@pytest.mark.parametrize("progress", [Progress.RETAIN, Progress.SWAP])
def test_kv_that_comes_back_from_elsewhere_is_not_looked_for(progress: Progress) -> None:
    """A sequence that kept its KV needs blocks to put it in, not blocks of others."""
    run = Harness(replace(LIMITS, max_slots=1, max_in_flight=1), SLUICEGATE, progress)
    run.claim(make_spec("batch", prompt=9, output=9, rank=2, score=5, family="app"))
    run.report()
    displace(run, "batch")
    run.resume("batch")
    start = start_of(run, "batch")
    assert start.computed_tokens == 9 + run.tokens["batch"] - 1
    assert start.swapped_tokens == (start.computed_tokens if progress is Progress.SWAP else 0)
    run.run_until_idle()


@pytest.mark.parametrize("progress", [Progress.RETAIN, Progress.SWAP])
def test_what_came_back_with_its_kv_is_not_waited_for(progress: Progress) -> None:
    """It decodes: it will never fill the blocks of its prompt again, and a follower would wait for its end."""
    limits = replace(LIMITS, max_slots=1, kv_blocks=60, max_in_flight=1)
    run = Harness(limits, SLUICEGATE, progress)
    run.claim(make_spec("batch", prompt=16, output=100, rank=2, score=5, family="app"))
    run.report()
    run.exchange(make_spec("large", prompt=236, output=1, rank=0), "batch")  # its blocks are overwritten
    while "large" not in run.ended:
        run.report() if run.in_flight else run.step()
    run.change_limits(replace(limits, max_slots=2))
    run.resume("batch")
    run.claim(make_spec("follower", prompt=17, output=2, rank=0, family="app"))
    start_of(run, "follower")
    assert "batch" not in run.ended
    run.run_until_idle()
