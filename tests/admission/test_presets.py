"""Presets are values, found by name, and each one's rule shows in what it plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.events import EndReason, Finished, FinishReason, Reported
from admission.limits import Limits
from admission.presets import PRESETS, SARATHI, KvAdmission, PrefillRule, Preset, preset, queue_order
from tests.admission.drive import Harness, make_spec

DESIGN = [
    "static",
    "request-dynamic",
    "orca",
    "sarathi",
    "vllm-v1",
    "trtllm-max-utilization",
    "trtllm-guaranteed-no-evict",
    "tutorial",
    "sluicegate",
]
RESERVING = [name for name, value in PRESETS.items() if value.kv_admission is KvAdmission.MAXIMUM]
CHUNKING = [name for name, value in PRESETS.items() if value.prefill is not PrefillRule.WHOLE]


def test_each_preset_is_known_by_its_own_name() -> None:
    """Flags, traces and documentation use the names."""
    assert [preset(name).name for name in PRESETS] == list(PRESETS) == DESIGN


def test_an_unknown_preset_names_the_known_ones() -> None:
    """The message is what an operator sees."""
    with pytest.raises(ValueError, match=r"'orka'.*orca.*tutorial, sluicegate"):
        preset("orka")


def test_a_preset_that_may_run_out_of_memory_must_name_a_victim() -> None:
    """Found when the preset is written, not when the pool is empty."""
    with pytest.raises(ValueError, match="names no victim"):
        replace(SARATHI, kv_victim=None)


def spans_of_long_prompt(name: str) -> tuple[list[int], int]:
    """Chunk lengths of a 6,000-token prompt that comes while a stream decodes; most tokens of one iteration."""
    harness = Harness(Limits(max_slots=2, token_budget=512, prefill_chunk=None), PRESETS[name])
    harness.claim(make_spec("stream", prompt=1, output=40))
    harness.claim(make_spec("long", prompt=6_000, output=1, score=1))
    harness.run_until_idle()
    plans = [step.plan for _, _, step in harness.log if step.plan is not None]
    lengths = [span.length for plan in plans for span in plan.prefill if span.length > 1]
    return lengths, max(len(plan.decode) + sum(span.length for span in plan.prefill) for plan in plans)


def test_a_long_prompt_spikes_one_iteration_under_orca_and_none_under_sarathi() -> None:
    """The time between tokens of every stream is the cost of its iterations: this is what chunks are for."""
    assert spans_of_long_prompt("orca") == ([6_000], 6_001)
    lengths, most = spans_of_long_prompt("sarathi")
    assert lengths == [511] * 11 + [6_000 - 11 * 511]
    assert most == 512


@pytest.mark.parametrize("name", CHUNKING)
def test_the_long_prefill_cap_leaves_budget_to_others(name: str) -> None:
    """VLLM's threshold: two long prompts advance side by side instead of one after the other."""
    harness = Harness(Limits(max_slots=3, token_budget=101, prefill_chunk=50), PRESETS[name])
    harness.claim(make_spec("stream", prompt=1, output=40))
    harness.claim(make_spec("first", prompt=200), make_spec("second", prompt=200))
    plan = harness.report().plan
    assert plan is not None
    assert (len(plan.decode), [span.length for span in plan.prefill]) == (1, [50, 50])


def crowd(name: str, **limits: int) -> Harness:
    """Twenty sequences that stop by themselves half way, in memory for about three prompts."""
    bounds = Limits(max_slots=8, token_budget=64, prefill_chunk=None, kv_blocks=12, block_size=4)
    harness = Harness(replace(bounds, **limits), PRESETS[name])
    harness.claim(*(make_spec(f"s{n:02}", prompt=13, output=16, expected=2, score=n) for n in range(20)))
    harness.run_until_idle(most_steps=5_000)
    return harness


def most_running(harness: Harness) -> int:
    plans = [step.plan for _, _, step in harness.log if step.plan is not None]
    return max(len(plan.decode) + len(plan.prefill) for plan in plans)


@pytest.mark.parametrize("depth", [1, 2])
def test_no_evict_never_preempts_where_max_utilization_does_and_pays_in_occupancy(depth: int) -> None:
    """The two capacity policies of TensorRT-LLM differ in exactly this trade."""
    eager = crowd("trtllm-max-utilization", max_in_flight=depth)
    careful = crowd("trtllm-guaranteed-no-evict", max_in_flight=depth)
    assert sum(eager.pauses.values()) > 0
    assert careful.pauses == {}
    assert most_running(eager) == 3
    assert most_running(careful) == 1
    assert sum(eager.tokens.values()) == sum(careful.tokens.values()) == 20 * 16


@pytest.mark.parametrize("name", RESERVING)
def test_what_is_reserved_to_the_end_never_runs_out(name: str) -> None:
    """These presets name no victim: they must never need one, however tight memory is."""
    for blocks in range(7, 30):
        assert crowd(name, kv_blocks=blocks).pauses == {}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in RESERVING])
def test_the_oldest_of_the_best_class_is_never_preempted_for_memory(name: str) -> None:
    """So some sequence always advances, under every engine's rule."""
    harness = crowd(name)
    assert harness.pauses.get("s00", 0) == 0
    assert set(harness.tokens.values()) == {16}


def test_the_watermark_of_vllm_keeps_newcomers_out_of_the_last_blocks() -> None:
    """Those that run grow into it instead of being preempted."""
    limits = Limits(max_slots=8, token_budget=64, prefill_chunk=None, kv_blocks=8, block_size=4)
    specs = [make_spec("a", prompt=16, output=16), make_spec("b", prompt=16, output=16, score=1)]
    running = {}
    for name in ("vllm-v1", "sarathi"):
        harness = Harness(limits, PRESETS[name])
        harness.claim(*specs)
        running[name] = harness.scheduler.running_ids()
    assert running == {"vllm-v1": ("a",), "sarathi": ("a", "b")}


def test_vllm_preempts_the_lowest_class_where_the_others_preempt_the_newest() -> None:
    """The rules agree until classes differ."""
    limits = Limits(max_slots=3, token_budget=64, prefill_chunk=None, kv_blocks=16, block_size=4)
    victims = {}
    for name in ("vllm-v1", "sarathi", "trtllm-max-utilization"):
        harness = Harness(limits, PRESETS[name])
        harness.claim(make_spec("oldest", prompt=16, output=24, rank=0))
        harness.claim(make_spec("low", prompt=16, output=24, rank=2, score=1))
        harness.claim(make_spec("newest", prompt=16, output=24, rank=1, score=2))
        while not harness.paused:
            harness.report()
        victims[name] = harness.paused[0]
    assert victims == {"vllm-v1": "low", "sarathi": "newest", "trtllm-max-utilization": "newest"}


@pytest.mark.parametrize("value", PRESETS.values(), ids=PRESETS)
def test_one_that_fails_among_sixteen_leaves_the_others_alone(value: Preset) -> None:
    """An exception in one row must not reach its neighbours."""
    limits = Limits(max_slots=16, token_budget=64, prefill_chunk=None, kv_blocks=64, block_size=4)
    harness = Harness(limits, value)
    harness.claim(*(make_spec(f"s{n:02}", prompt=2, output=5, score=n) for n in range(16)))
    plan = harness.in_flight.popleft()
    report = harness.execute(plan)
    failed = next(start for start in plan.starts if start.sequence_id == "s07")
    harness.held[failed.slot].done = True
    finished = (Finished(slot=failed.slot, reason=FinishReason.FAILED),)
    harness.step(Reported(step=plan.step, finished=finished, live_blocks=report.live_blocks))
    harness.run_until_idle()
    reasons = [harness.ended[f"s{n:02}"].reason for n in range(16)]
    assert reasons == [EndReason.LENGTH] * 7 + [EndReason.FAILED] + [EndReason.LENGTH] * 8


@pytest.mark.parametrize(
    ("name", "order"), [("sluicegate", "aging"), ("vllm-v1", "priority"), ("orca", "fcfs"), ("tutorial", "aging")]
)
def test_the_queue_behind_a_preset_has_its_order(name: str, order: str) -> None:
    """A store that sorted otherwise would hand over in an order that the engine never had."""
    assert queue_order(preset(name)) == order
