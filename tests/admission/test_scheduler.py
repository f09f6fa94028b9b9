"""What the scheduler does, rule by rule, against a strict worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.events import Claimed, EndReason, Finished, FinishReason, PauseReason, Reported
from admission.limits import Limits
from admission.presets import PRESETS, Progress
from admission.scheduler import LedgerMismatch, Scheduler, UnexpectedReport
from tests.admission.drive import Harness, make_spec

LIMITS = Limits(max_slots=2, token_budget=6, prefill_chunk=3)
TUTORIAL = PRESETS["tutorial"]
SLUICEGATE = PRESETS["sluicegate"]


def started(*, depth: int = 1, limits: Limits = LIMITS, **shape: int) -> Harness:
    """A harness with sequence ``a`` in slot 0, its first plan in flight."""
    harness = Harness(replace(limits, max_in_flight=depth), TUTORIAL)
    harness.claim(make_spec("a", **shape))
    return harness


def test_a_long_prompt_is_split_into_chunks_and_the_last_one_emits() -> None:
    """Chunks keep a long prompt from stalling the others; the first token must not cost an iteration of its own."""
    harness = started(prompt=7, output=2)
    harness.report()
    harness.report()
    spans = [step.plan.prefill[0] for _, _, step in harness.log if step.plan is not None]
    assert [(span.start, span.length, span.emits) for span in spans] == [(0, 3, False), (3, 3, False), (6, 1, True)]
    harness.report()
    assert harness.tokens["a"] == 1


def test_decodes_come_before_prefill_in_the_budget() -> None:
    """Running streams must not wait for a newcomer's prompt."""
    harness = Harness(replace(LIMITS, token_budget=3), TUTORIAL)
    harness.claim(make_spec("a", prompt=1, output=9))
    harness.claim(make_spec("b", prompt=9, output=1))
    plan = harness.report().plan
    assert plan is not None
    assert plan.decode == (0,)
    assert plan.prefill[0].length == 2


def test_nothing_is_planned_past_the_last_token_with_two_plans_in_flight() -> None:
    """The length is known ahead: a plan for a sequence that will have ended would waste an iteration."""
    harness = started(depth=2, prompt=1, output=2)
    second = harness.step().plan
    assert second is not None
    assert second.decode == (0,)
    assert harness.step().plan is None
    harness.report()
    harness.report()
    assert harness.ended["a"].reason is EndReason.LENGTH


def test_an_early_stop_keeps_slot_and_blocks_until_the_last_plan_that_names_it() -> None:
    """The worker may still write into those blocks: they are not ours before its report."""
    harness = started(depth=2, limits=replace(LIMITS, kv_blocks=4, block_size=4), prompt=1, output=9)
    harness.step()
    step = harness.report(stop=(0,))
    assert harness.ended["a"].reason is EndReason.STOP
    assert step.plan is None
    assert harness.scheduler.slots_in_use == 1
    plan = harness.report().plan
    assert harness.scheduler.slots_in_use == harness.scheduler.kv_blocks_in_use == 0
    assert plan is not None
    assert plan.frees == (0,)


def test_a_plan_of_frees_alone_lets_an_idle_worker_let_go() -> None:
    """Otherwise the memory of the last sequence stays taken on the worker until the next request comes."""
    harness = started(prompt=1, output=1)
    plan = harness.report().plan
    assert plan is not None
    assert (plan.frees, plan.starts, plan.prefill, plan.decode) == ((0,), (), (), ())
    assert harness.report().plan is None


def test_a_freed_slot_is_used_again_in_the_very_next_plan() -> None:
    """Refilling between iterations is what continuous batching means."""
    harness = Harness(replace(LIMITS, max_slots=1), TUTORIAL)
    harness.claim(make_spec("a", prompt=1, output=1))
    harness.claim(make_spec("b", prompt=1, output=1))
    plan = harness.report().plan
    assert plan is not None
    assert plan.frees == (0,)
    assert [start.sequence_id for start in plan.starts] == ["b"]


def test_a_cancelled_sequence_is_in_no_later_plan() -> None:
    """Nothing is generated for nobody."""
    harness = started(prompt=1, output=9)
    harness.report()
    step = harness.cancel("a")
    assert [ended.reason for ended in step.ended] == [EndReason.CANCELLED]
    plan = harness.report().plan
    assert plan is not None
    assert plan.decode == ()


def test_a_cancel_of_an_unknown_sequence_changes_nothing() -> None:
    """A cancel may cross the end of its sequence."""
    harness = started(prompt=1, output=9)
    assert harness.cancel("nobody").ended == ()


def test_a_deadline_ends_a_sequence_and_is_when_the_core_wants_to_be_woken() -> None:
    """A client that has given up must not hold a slot; with nothing in flight no event would tell."""
    harness = Harness(LIMITS, TUTORIAL)
    step = harness.claim(make_spec("a", prompt=1, output=9, deadline_us=3))
    assert step.wake_at == 3
    harness.step()
    step = harness.step()
    assert [ended.reason for ended in step.ended] == [EndReason.DEADLINE]
    assert step.wake_at is None


def test_a_lost_worker_ends_all_and_frees_everything() -> None:
    """Its KV is gone, and its reports will never come."""
    harness = started(limits=replace(LIMITS, kv_blocks=8), prompt=1, output=9)
    harness.claim(make_spec("b"))
    step = harness.lose_worker()
    assert {ended.reason for ended in step.ended} == {EndReason.WORKER_LOST}
    assert harness.scheduler.slots_in_use == harness.scheduler.kv_blocks_in_use == 0
    plan = harness.claim(make_spec("c")).plan
    assert plan is not None
    assert plan.frees == (), "a new worker holds nothing to let go of"


@pytest.mark.parametrize("step", [-1, 1, 7])
def test_a_report_that_is_not_due_is_refused_and_changes_nothing(step: int) -> None:
    """Duplicates and strangers must not advance the books; the true report still counts."""
    harness = started(prompt=1, output=2)
    with pytest.raises(UnexpectedReport):
        harness.scheduler.take(Reported(step=step), 9)
    harness.report()
    with pytest.raises(UnexpectedReport):
        harness.scheduler.take(Reported(step=0), 9)
    harness.report()
    assert harness.ended["a"].reason is EndReason.LENGTH


def test_a_report_that_names_a_strange_slot_is_refused() -> None:
    """A worker that speaks of what it was not given cannot be trusted with the rest."""
    harness = started(prompt=1, output=2)
    with pytest.raises(UnexpectedReport):
        harness.scheduler.take(Reported(step=0, finished=(Finished(slot=1, reason=FinishReason.STOP),)), 9)


def test_a_worker_that_holds_other_blocks_than_the_ledger_is_refused() -> None:
    """A leak on either side is found at the first report after it, not when memory runs out."""
    harness = started(limits=replace(LIMITS, kv_blocks=8), prompt=1, output=2)
    with pytest.raises(LedgerMismatch):
        harness.scheduler.take(Reported(step=0, live_blocks=2), 9)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_can_never_fit_the_pool_fails_and_does_not_block_others(preset: str) -> None:
    """E01: at the head of a queue it would wait for ever, and everyone behind it."""
    harness = Harness(replace(LIMITS, kv_blocks=4, block_size=4), PRESETS[preset])
    step = harness.claim(make_spec("huge", prompt=10, output=8))
    assert [ended.reason for ended in step.ended] == [EndReason.FAILED]
    assert harness.claim(make_spec("exact", prompt=10, output=7)).plan is not None
    harness.run_until_idle()
    assert harness.ended["exact"].reason is EndReason.LENGTH


def test_a_sequence_that_moved_here_with_tokens_computes_them_and_goes_on() -> None:
    """After a move the prompt and the tokens so far are prefilled, and only the rest is emitted."""
    harness = Harness(LIMITS, TUTORIAL)
    harness.tokens["a"] = 3
    harness.claim(replace(make_spec("a", prompt=2, output=5), emitted_tokens=3))
    harness.run_until_idle()
    assert harness.tokens["a"] == 5


def test_a_claim_with_nothing_left_to_emit_ends_at_once() -> None:
    """It may have emitted its last token just before it moved."""
    harness = Harness(LIMITS, TUTORIAL)
    step = harness.claim(replace(make_spec("a", prompt=2, output=5), emitted_tokens=5))
    assert [ended.reason for ended in step.ended] == [EndReason.LENGTH]


def test_a_claim_of_a_running_sequence_is_left_alone() -> None:
    """The store may hand over twice what it could not confirm."""
    harness = started(prompt=1, output=3)
    harness.step(Claimed(sequence=harness.specs["a"]))
    harness.run_until_idle()
    assert harness.tokens["a"] == 3


def test_the_weakest_is_the_lowest_class_with_the_most_work() -> None:
    """The store exchanges exactly this one for a better newcomer."""
    harness = Harness(replace(LIMITS, max_slots=3), SLUICEGATE)
    harness.claim(make_spec("high", output=90, rank=0))
    harness.claim(make_spec("short", output=5, rank=2))
    harness.claim(make_spec("long", output=6, rank=2))
    weakest = harness.scheduler.want().weakest
    assert weakest is not None
    assert weakest.sequence_id == "long"


def test_an_exchanged_victim_continues_where_it_was() -> None:
    """Preempted, resumed, complete: no token lost, none twice."""
    harness = started(depth=2, limits=replace(LIMITS, max_slots=1), prompt=2, output=6)
    harness.step()
    harness.exchange(make_spec("better", rank=0, prompt=2, output=2), "a")
    harness.run_until_idle()
    assert harness.tokens == {"a": 6, "better": 2}
    assert {ended.reason for ended in harness.ended.values()} == {EndReason.LENGTH}


def test_pauses_are_bounded_by_the_budget() -> None:
    """Under a steady stream of better requests a low one would be displaced for ever."""
    harness = Harness(replace(LIMITS, max_slots=1), SLUICEGATE)
    harness.claim(make_spec("low", rank=2, prompt=1, output=50))
    for number in range(9):
        weakest = harness.scheduler.want().weakest
        if weakest is not None:
            harness.exchange(make_spec(f"high{number}", rank=0, prompt=1, output=1), weakest.sequence_id)
        while harness.in_flight and "low" in harness.paused:
            want = harness.report().want
            if want.slots > 0:
                harness.resume("low")
    assert harness.pauses["low"] == SLUICEGATE.pause_budget
    harness.run_until_idle()
    assert harness.tokens["low"] == 50


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_three_sequences_in_a_pool_for_two_finish_with_few_restarts(depth: int, preset: str) -> None:
    """E03: a published livelock: with prompts admitted alone, the third restarts sixteen times elsewhere."""
    limits = Limits(max_slots=3, token_budget=512, prefill_chunk=64, kv_blocks=18, block_size=16, max_in_flight=depth)
    harness = Harness(limits, PRESETS[preset])
    for name in ("a", "b", "c"):
        harness.claim(make_spec(name, prompt=64, output=64, expected=16))
    harness.run_until_idle()
    assert sum(harness.tokens.values()) == 3 * 64
    assert sum(harness.pauses.values()) <= 4
    assert PRESETS[preset].kv_victim is not None or not harness.pauses


@pytest.mark.parametrize("preset", PRESETS)
def test_fifty_sequences_in_a_pool_of_little_more_than_one_all_finish(preset: str) -> None:
    """E03: progress in the tightest memory: each plan advances somebody, and pauses stay within the budget."""
    limits = Limits(max_slots=8, token_budget=64, prefill_chunk=16, kv_blocks=10, block_size=4, max_in_flight=2)
    harness = Harness(limits, PRESETS[preset])
    for number in range(50):
        harness.claim(make_spec(f"s{number}", prompt=17, output=16, expected=2, score=number))
    harness.run_until_idle(most_steps=50 * (16 + 2) * 2)
    assert sum(harness.tokens.values()) == 50 * 16
    budget = PRESETS[preset].pause_budget
    assert max(harness.pauses.values(), default=0) <= (4 if budget is None else budget)


@pytest.mark.parametrize(
    ("progress", "computed_again", "swapped"),
    [(Progress.RECOMPUTE, 7, 0), (Progress.RETAIN, 0, 0), (Progress.SWAP, 0, 6)],
)
def test_the_cost_of_a_preemption_stands_in_the_plans(progress: Progress, computed_again: int, swapped: int) -> None:
    """Recomputed tokens are prefill, swapped ones are named: a cost model charges for both, and for nothing else."""
    harness = Harness(replace(LIMITS, max_slots=1, prefill_chunk=None), SLUICEGATE, progress)
    harness.claim(make_spec("low", rank=2, prompt=4, output=9))
    harness.report()
    harness.report()
    harness.exchange(make_spec("better", rank=0, prompt=1, output=1), "low")
    harness.run_until_idle()
    plans = [step.plan for _, _, step in harness.log if step.plan is not None]
    assert sum(span.length for plan in plans for span in plan.prefill) == 4 + 1 + computed_again
    assert sum(start.swapped_tokens for plan in plans for start in plan.starts) == swapped
    assert harness.tokens == {"low": 9, "better": 1}


def test_the_lowest_class_gives_way_when_memory_runs_out() -> None:
    """Memory pressure must not reach the better class while a worse one runs."""
    limits = Limits(max_slots=2, token_budget=64, prefill_chunk=None, kv_blocks=4, block_size=4)
    harness = Harness(limits, SLUICEGATE)
    harness.claim(make_spec("batch", prompt=4, output=8, expected=1, rank=2))
    harness.claim(make_spec("fast", prompt=4, output=8, expected=1, rank=0))
    harness.run_until_idle()
    told = [paused for _, _, step in harness.log for paused in step.paused]
    assert {(paused.sequence_id, paused.reason) for paused in told} == {("batch", PauseReason.KV)}


def test_one_that_got_its_block_is_not_preempted_in_the_same_plan() -> None:
    """The plan would name a block of a sequence that it no longer holds (seen with generated histories)."""
    limits = Limits(max_slots=3, token_budget=64, prefill_chunk=None, kv_blocks=5, block_size=4)
    harness = Harness(limits, TUTORIAL)
    harness.claim(make_spec("junior", prompt=3, output=5, rank=2))
    harness.claim(make_spec("oldest", prompt=4, output=5, rank=0, score=0))
    harness.claim(make_spec("newest", prompt=4, output=5, rank=0, score=1))
    harness.run_until_idle()
    assert harness.pauses == {"junior": 1}
    assert sum(harness.tokens.values()) == 15


def test_fewer_slots_pause_the_newest_at_once() -> None:
    """New limits hold from the next plan on, and nothing is lost by them."""
    harness = started(prompt=1, output=9)
    harness.claim(make_spec("b", prompt=1, output=9))
    harness.report()
    harness.change_limits(replace(LIMITS, max_slots=1))
    harness.report()
    assert harness.paused == ["b"]
    harness.run_until_idle()
    assert harness.tokens == {"a": 9, "b": 9}


def test_a_lone_prompt_is_not_chunked_by_the_default_preset() -> None:
    """Nobody is there to be stalled by it: chunks would only add iterations."""
    harness = Harness(replace(LIMITS, token_budget=64), SLUICEGATE)
    plan = harness.claim(make_spec("a", prompt=50)).plan
    assert plan is not None
    assert plan.prefill[0].length == 50


def test_no_slots_are_wanted_when_memory_has_no_room() -> None:
    """What is claimed and cannot start is taken from other workers that could."""
    harness = Harness(replace(LIMITS, max_slots=8, token_budget=8, kv_blocks=4, block_size=4), SLUICEGATE)
    want = harness.claim(make_spec("a", prompt=8, output=9)).want
    assert (want.slots, want.kv_tokens) == (0, 0)


def test_the_room_in_memory_is_stated_when_no_slot_is_free() -> None:
    """The store weighs a newcomer against its victim's memory and what is left; zero would refuse a longer one."""
    want = Harness(replace(LIMITS, max_slots=1), SLUICEGATE).claim(make_spec("a")).want
    assert (want.slots, want.kv_tokens) == (0, None)
    limits = replace(LIMITS, max_slots=1, kv_blocks=10, block_size=4)
    want = Harness(limits, SLUICEGATE).claim(make_spec("a", prompt=4, output=5)).want
    assert (want.slots, want.kv_tokens) == (0, 7 * 4 + 1)


def test_budgets_below_the_slots_are_refused() -> None:
    """Every slot decodes in every iteration, so the budget must hold one token for each."""
    with pytest.raises(ValueError, match="token_budget"):
        Scheduler(replace(LIMITS, token_budget=1), TUTORIAL)


def test_a_class_is_short_of_what_it_is_guaranteed_and_lends_the_rest() -> None:
    """The store serves who is short first; nobody keeps slots empty for a class that does not come."""
    limits = replace(LIMITS, max_slots=4, token_budget=8, guaranteed_slots=(("class0", 2), ("class2", 1)))
    harness = Harness(limits, SLUICEGATE)
    step = harness.claim(*(make_spec(f"batch{n}", rank=2, score=9, output=9) for n in range(4)))
    assert (step.want.slots, step.want.short) == (0, (("class0", 2),))
    step = harness.exchange(make_spec("urgent", rank=0, output=9), "batch0")
    assert step.want.short == (("class0", 1),)
    harness.run_until_idle()
    assert harness.step().want.short == (("class0", 2), ("class2", 1))


def test_nobody_is_displaced_from_a_guaranteed_slot() -> None:
    """A guarantee that ends when somebody better comes is none."""
    limits = replace(LIMITS, max_slots=2, token_budget=8, guaranteed_slots=(("class2", 1),))
    harness = Harness(limits, SLUICEGATE)
    step = harness.claim(*(make_spec(f"batch{n}", rank=2, score=9, output=9) for n in range(2)))
    assert step.want.weakest is not None
    step = harness.exchange(make_spec("urgent", rank=0, output=9), step.want.weakest.sequence_id)
    assert step.want.weakest is not None
    assert step.want.weakest.sequence_id == "urgent"
    harness.run_until_idle()


def test_a_class_that_is_never_preempted_starts_with_all_its_memory_and_runs_to_its_end() -> None:
    """For slots and for memory alike: whatever comes, it goes on."""
    limits = replace(LIMITS, max_slots=4, kv_blocks=8, block_size=4, unpreemptible=("class2",))
    harness = Harness(limits, SLUICEGATE)
    harness.claim(make_spec("kept", rank=2, score=9, prompt=4, output=13, expected=1))
    step = harness.claim(*(make_spec(f"other{n}", rank=1, prompt=4, output=12, expected=1) for n in range(3)))
    assert step.want.weakest is None or step.want.weakest.sequence_id != "kept"
    harness.run_until_idle()
    assert "kept" not in harness.pauses
    assert sum(harness.pauses.values()) > 0


@pytest.mark.parametrize("guaranteed", [(("class0", 3), ("class1", 2)), (("class0", -1),)])
def test_guarantees_that_cannot_be_kept_are_refused(guaranteed: tuple[tuple[str, int], ...]) -> None:
    """More slots than there are cannot be promised."""
    with pytest.raises(ValueError, match="guaranteed_slots"):
        Scheduler(replace(LIMITS, max_slots=4, token_budget=8, guaranteed_slots=guaranteed), SLUICEGATE)


def test_fewer_slots_pause_who_may_be_paused_first() -> None:
    """A class that is never preempted gives way only when nobody else can."""
    limits = replace(LIMITS, max_slots=3, unpreemptible=("class0",))
    harness = Harness(limits, SLUICEGATE)
    harness.claim(make_spec("batch", rank=2, output=20), make_spec("kept", rank=0, output=20, score=1))
    harness.change_limits(replace(limits, max_slots=1))
    assert harness.scheduler.running_ids() == ("kept",)
    harness.run_until_idle()
