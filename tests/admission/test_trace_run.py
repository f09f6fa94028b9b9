"""Traces through the queue rule and the scheduler: what the simulator is for, on small inputs and a real one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.classes import BATCH, DEFAULT_CLASSES, INTERACTIVE, STANDARD, PriorityClass
from admission.cost import CostModel
from admission.limits import Limits
from admission.presets import PRESETS, KvAdmission, PrefillRule, Preset, Progress
from admission.standing import WaitingOrderName
from admission.summary import Summary, Tally
from admission.trace import Result
from admission.trace_csv import Arrival, parse_trace
from admission.trace_rows import Iteration, Rejection
from admission.trace_run import TraceRun
from admission.trace_setup import TraceSetup
from tests.examples import examples

SECOND = CostModel(base_ns=1_000_000_000)
SHAREGPT = Path(__file__).parents[1] / "traces" / "sharegpt_short.csv"
EIGHT = (20, 45, 80, 120, 150, 90, 60, 200)


def setup(preset: str | Preset = "sluicegate", **changes: object) -> TraceSetup:
    limits = {"max_slots": 8, "token_budget": 64, "prefill_chunk": 32, "kv_blocks": None, "max_queue_delay_us": 0}
    given_limits = {name: changes.pop(name) for name in list(changes) if name in limits}
    base = TraceSetup(
        preset=PRESETS[preset] if isinstance(preset, str) else preset,
        limits=Limits(**(limits | given_limits)),  # type: ignore[arg-type]
        cost=SECOND,
        queue_order=WaitingOrderName.AGING,
        max_queue=None,
        queue_tokens=None,
        max_passes=4,
        context_length=None,
        max_tokens=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def arrivals(*rows: tuple[int, int, int], cls: PriorityClass = STANDARD) -> tuple[Arrival, ...]:
    """Requests of (second, prompt, output)."""
    return tuple(
        Arrival(request_id=f"r{n}", arrival_us=at * 1_000_000, prompt_tokens=prompt, output_tokens=output, cls=cls)
        for n, (at, prompt, output) in enumerate(rows, start=1)
    )


def run(requests: Sequence[Arrival], under: TraceSetup) -> tuple[list[Iteration], TraceRun, Summary]:
    simulated = TraceRun(requests, under)
    rows = list(simulated.iterations())
    tally = Tally(max_slots=under.limits.max_slots, kv_blocks=under.limits.kv_blocks)
    for row in rows:
        tally.add(row)
    return rows, simulated, tally.summary(simulated.records.values())


@pytest.mark.parametrize("preset", ["static", "request-dynamic"])
def test_a_held_batch_of_eight_wastes_835_of_1600_slot_rounds(preset: str) -> None:
    """The example with which static batching is explained, in its own numbers."""
    _, _, summary = run(arrivals(*((0, 1, output) for output in EIGHT)), setup(preset))
    assert (summary.num_iterations, summary.slot_rounds) == (200, 1600)
    assert (summary.useful_rounds, summary.wasted_rounds) == (765, 835)
    assert f"{100 * summary.wasted_rounds / summary.slot_rounds:.2f}" == "52.19"


@pytest.mark.parametrize("preset", ["orca", "sarathi", "vllm-v1", "trtllm-guaranteed-no-evict", "sluicegate"])
def test_iteration_level_presets_refill_a_freed_slot_in_the_next_iteration(preset: str) -> None:
    """What continuous batching is: with arrivals waiting, no slot is empty for a single iteration."""
    rows, _, _ = run(arrivals(*((0, 1, output) for output in EIGHT * 4)), setup(preset))
    while_waiting = [row for row in rows if row.num_waiting > 0]
    assert len(while_waiting) > 200
    assert all(row.slots == 8 for row in while_waiting)
    assert all(
        len(after.started) == min(len(row.completed), row.num_waiting)
        for row, after in zip(while_waiting, rows[1:], strict=False)
    )


def test_an_unbounded_queue_grows_by_six_a_step_when_eight_come_and_two_leave() -> None:
    """Overload without a bound: the wait of a newcomer grows without end."""
    flood = arrivals(*((step, 1, 1) for step in range(50) for _ in range(8)))
    rows, _, summary = run(flood, setup(max_slots=2))
    waiting = [row.num_waiting for row in rows[:50]]
    assert [after - before for before, after in pairwise(waiting)] == [6] * 49
    assert summary.num_completed == 400


def test_a_bounded_queue_never_passes_its_cap_and_the_rest_is_rejected() -> None:
    """The same flood: every request has an answer, and nobody waits longer than the bound lets him."""
    flood = arrivals(*((step, 1, 1) for step in range(50) for _ in range(8)))
    rows, simulated, summary = run(flood, setup(max_slots=2, max_queue=10))
    assert summary.peak_waiting == 10
    assert all(row.peak_waiting <= 10 for row in rows)
    assert summary.num_completed + summary.num_rejected == 400
    assert summary.rejections == {Rejection.QUEUE_FULL: summary.num_rejected}
    assert sum(len(row.rejected) for row in rows) == summary.num_rejected
    slowest = max(r.first_output - r.arrived_in for r in simulated.records.values() if r.first_output is not None)
    assert slowest <= 10 // 2 + 1


@functools.cache
def sharegpt(preset: str) -> Summary:
    """Three hundred real requests at once, in a pool that holds about 25 of them."""
    found = parse_trace(SHAREGPT.read_text())
    cost = CostModel(base_ns=8_900_000, decode_ns=46_000, prefill_ns=93_000)
    limits = {"max_slots": 256, "token_budget": 512, "prefill_chunk": 512, "kv_blocks": 1000}
    _, _, summary = run(found.arrivals, setup(preset, cost=cost, max_tokens=1024, **limits))
    assert summary.num_completed == 300
    return summary


def test_guaranteed_no_evict_pays_in_occupancy_for_never_preempting() -> None:
    """On the trace on which MAX_UTILIZATION preempts: no restarts, and half the pool empty."""
    careful, greedy = sharegpt("trtllm-guaranteed-no-evict"), sharegpt("trtllm-max-utilization")
    assert careful.kv_preemptions == 0
    assert greedy.kv_preemptions > 0
    assert careful.kv_occupancy is not None and greedy.kv_occupancy is not None  # noqa: PT018 - for the type checker
    assert careful.kv_occupancy < 0.5
    assert greedy.kv_occupancy > 0.85


def test_admission_on_the_prompt_alone_preempts_more_than_once_per_request_and_the_default_hardly() -> None:
    """Without a watermark, on ShareGPT lengths, when saturated: what expected need and a watermark are for."""
    assert sharegpt("trtllm-max-utilization").kv_preemptions > 300
    assert sharegpt("sluicegate").kv_preemptions < 30


def test_seconds_follow_the_cost_model_and_idle_time_is_jumped_over() -> None:
    """Three iterations of a second each, then nothing for a while: no rows for it, but the clock knows."""
    rows, simulated, summary = run(arrivals((0, 1, 3), (100, 1, 1)), setup())
    assert [(row.iteration, row.at_us // 1_000_000) for row in rows] == [(0, 0), (1, 1), (2, 2), (3, 100)]
    assert simulated.records["r1"].completed_us == 3_000_000
    assert (summary.busy_us, summary.end_us) == (4_000_000, 101_000_000)
    assert summary.classes[0].first_token.iterations == (1, 1, 1, 1)


def test_an_arrival_after_a_long_idle_time_meets_a_standing_want_even_without_a_queue() -> None:
    """A want lives five seconds in the store; a live driver renews it, and so does the simulated one."""
    _, simulated, _ = run(arrivals((0, 1, 1), (60, 1, 1)), setup(max_queue=0))
    assert [record.result for record in simulated.records.values()] == [Result.COMPLETED] * 2


def test_a_request_that_can_never_fit_is_refused_at_the_door_and_delays_nobody() -> None:
    """At the head of the queue it would block everybody for ever."""
    _, simulated, summary = run(arrivals((0, 100, 29), (0, 16, 4)), setup(kv_blocks=8, context_length=1000))
    assert summary.rejections == {}
    _, simulated, summary = run(arrivals((0, 100, 30), (0, 16, 4)), setup(kv_blocks=8, context_length=1000))
    assert summary.rejections == {Rejection.CONTEXT_LENGTH_EXCEEDED: 1}
    assert simulated.records["r2"].first_output == 0


def test_a_request_is_taken_to_allow_max_tokens_and_still_ends_where_it_did() -> None:
    """Traces do not say what clients allowed; memory is reserved for that, rounds are run for what came."""
    rows, _, summary = run(arrivals((0, 16, 4), (0, 16, 4)), setup("static", kv_blocks=5, max_tokens=60))
    assert len(rows) == 8  # one after the other: each reserves all five blocks
    assert summary.num_completed == 2


def test_a_gathered_batch_waits_for_the_delay_and_then_starts_small() -> None:
    """`request-dynamic` with a queue delay: the clock goes to where the scheduler asks to be woken."""
    rows, _, _ = run(arrivals((0, 1, 1), (1, 1, 1), (9, 1, 1)), setup("request-dynamic", max_queue_delay_us=3_000_000))
    assert [(row.at_us // 1_000_000, row.started) for row in rows] == [(3, ["r1", "r2"]), (12, ["r3"])]


def test_a_better_class_takes_a_slot_and_the_victim_finishes_later() -> None:
    """Preemption by slot, through the queue's exchange; under retained progress nothing is computed twice."""
    low = arrivals((0, 1, 9), cls=BATCH)
    high = tuple(replace(arrival, request_id="high") for arrival in arrivals((2, 1, 2), cls=INTERACTIVE))
    kept = replace(PRESETS["sluicegate"], progress=Progress.RETAIN)
    rows, simulated, summary = run([*low, *high], setup(max_slots=1, preset=kept))
    assert (summary.slot_preemptions, summary.kv_preemptions) == (1, 0)
    assert simulated.records["high"].completed == 3
    assert len(rows) == 11
    assert [entry.name for entry in summary.classes] == ["interactive", "batch"]
    assert summary.classes[1].gap.iterations == (1, 3, 3, 3)


@pytest.mark.parametrize("progress", list(Progress))
def test_swapped_progress_costs_two_copies_and_recomputed_a_prefill(progress: Progress) -> None:
    """How progress is kept shows in the time of the iteration that goes on, and nowhere else."""
    low = arrivals((0, 10, 9), cls=BATCH)
    high = tuple(replace(arrival, request_id="high") for arrival in arrivals((2, 1, 1), cls=INTERACTIVE))
    cost = replace(SECOND, swap_ns=1_000_000, prefill_ns=1_000_000)
    preset = replace(PRESETS["sluicegate"], progress=progress)
    rows, _, _ = run([*low, *high], setup(max_slots=1, kv_blocks=10, preset=preset, cost=cost))
    (resumed,) = (row for row in rows if row.iteration > 0 and row.started == ["r1"])
    extra = {Progress.RETAIN: 0, Progress.SWAP: 2 * 11, Progress.RECOMPUTE: 12}
    assert resumed.took_us == 1_000_000 + extra[progress] * 1000


@pytest.mark.parametrize(("preset", "longest_us"), [("orca", 6_000_000), ("sarathi", 512_000)])
def test_a_long_prompt_is_a_spike_in_everybodys_gaps_unless_it_is_cut(preset: str, longest_us: int) -> None:
    """6,000 tokens in one iteration against chunks within the budget: nobody waits for more than one full budget."""
    cost = CostModel(base_ns=0, decode_ns=1_000_000, prefill_ns=1_000_000)
    requests = arrivals((0, 1, 100), (0, 1, 100), (0, 1, 100), (0, 6000, 5))
    late = [*requests[:3], replace(requests[3], arrival_us=50_000)]
    _, _, summary = run(late, setup(preset, token_budget=512, prefill_chunk=512, cost=cost))
    longest = summary.classes[0].gap.us
    assert longest is not None
    assert longest_us - 10_000 <= longest.greatest <= longest_us + 10_000


@pytest.mark.parametrize("preset", list(PRESETS))
def test_three_requests_in_a_pool_for_two_finish_with_few_restarts(preset: str) -> None:
    """A published livelock: 64 and 64 tokens each, 18 blocks of 16; the third restarts 16 times elsewhere."""
    _, simulated, summary = run(arrivals(*[(0, 64, 64)] * 3), setup(preset, kv_blocks=18))
    assert summary.num_completed == 3
    assert max(record.kv_preemptions for record in simulated.records.values()) <= 4


@st.composite
def traces(draw: st.DrawFn) -> tuple[Arrival, ...]:
    shape = st.tuples(st.integers(0, 20), st.integers(1, 60), st.integers(1, 12), st.sampled_from(DEFAULT_CLASSES))
    rows = sorted(draw(st.lists(shape, min_size=1, max_size=25)), key=lambda row: row[0])
    return tuple(
        Arrival(request_id=f"r{n}", arrival_us=at * 500_000, prompt_tokens=prompt, output_tokens=output, cls=cls)
        for n, (at, prompt, output, cls) in enumerate(rows)
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    requests=traces(),
    preset=st.sampled_from(list(PRESETS)),
    kv_blocks=st.sampled_from([None, 6, 12]),
    max_queue=st.sampled_from([None, 0, 3]),
    max_tokens=st.sampled_from([None, 20]),
)
def test_every_request_ends_once_and_no_bound_is_exceeded(
    requests: tuple[Arrival, ...], preset: str, kv_blocks: int | None, max_queue: int | None, max_tokens: int | None
) -> None:
    """Any trace, any preset: the books of the simulator add up, and slots, budget, pool and queue hold."""
    under = setup(preset, max_slots=3, token_budget=16, kv_blocks=kv_blocks, max_queue=max_queue, max_tokens=max_tokens)
    rows, simulated, summary = run(requests, under)
    completed = [request for row in rows for request in row.completed]
    assert len(completed) == len(set(completed)) == summary.num_completed
    assert summary.num_completed + summary.num_rejected == len(requests)
    output = sum(r.arrival.output_tokens for r in simulated.records.values() if r.result is Result.COMPLETED)
    assert summary.output_tokens == output
    gaps = sum(gap.times for row in rows for gap in row.gaps)
    assert gaps == output - summary.num_completed
    assert summary.num_held_back == 0
    for row in rows:
        assert row.slots <= 3
        assert row.kv_blocks is None or row.kv_blocks <= (kv_blocks or 0)
        if PRESETS[preset].prefill is not PrefillRule.WHOLE:
            assert row.unused_budget is not None
            assert row.unused_budget >= 0
    if PRESETS[preset].kv_admission is KvAdmission.MAXIMUM:
        assert summary.kv_preemptions == 0
    if max_queue is not None and not summary.kv_preemptions:
        assert summary.peak_waiting <= max_queue
