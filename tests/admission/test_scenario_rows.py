"""Scenarios in the terms of a summary."""

from __future__ import annotations

from pathlib import Path

from admission.cost import CostModel
from admission.presets import PRESETS
from admission.scenario import Policy, Priority, Request, Scenario, parse_scenario, with_policy
from admission.scenario_rows import summarize
from admission.simulate import simulate
from admission.trace import Outcome, RequestSummary, Result, Row, Termination

GOLDEN = Path(__file__).parents[1] / "golden"
TUTORIAL = PRESETS["tutorial"]
SECOND = CostModel(base_ns=1_000_000_000)


def test_a_golden_scenario_comes_down_to_what_its_trace_says() -> None:
    """The summary is counted from the same rows that the golden files hold."""
    scenario = parse_scenario((GOLDEN / "baseline.scenario.json").read_text())
    outcome = simulate(scenario, TUTORIAL)
    summary = summarize(scenario, outcome, TUTORIAL, SECOND)
    assert (summary.num_requests, summary.num_completed, summary.num_rejected) == (6, 5, 1)
    assert summary.slot_preemptions == 1
    assert summary.peak_waiting == 2
    assert summary.end_us == len(outcome.trace) * 1_000_000
    assert summary.unused_budget == sum(row.unused_budget for row in outcome.trace)
    assert summary.num_held_back == 0
    assert [entry.name for entry in summary.classes] == ["high", "normal"]


def test_waiting_for_an_iteration_shows_in_latencies_of_both_kinds() -> None:
    """Two requests, one slot: the second waits for two iterations of a second."""
    requests = tuple(
        Request(id=name, arrival=0, priority=Priority.NORMAL, prompt=3, output=2) for name in ("first", "second")
    )
    scenario = Scenario(policy=Policy(max_active=1, max_queue=2, token_budget=6, prefill_chunk=3), requests=requests)
    summary = summarize(scenario, simulate(scenario, TUTORIAL), TUTORIAL, SECOND)
    (normal,) = summary.classes
    assert normal.first_token.iterations == (1, 3, 3, 3)
    assert normal.whole.us == (2_000_000, 4_000_000, 4_000_000, 4_000_000)


def test_a_sequence_that_is_passed_over_while_another_prefills_is_counted_as_held_back() -> None:
    """The summary's "never" is worth something only because this would be seen."""
    requests = tuple(
        Request(id=name, arrival=0, priority=Priority.NORMAL, prompt=1, output=3) for name in ("ready", "new")
    )
    policy = Policy(max_active=2, max_queue=0, token_budget=2, prefill_chunk=1)
    rows = (
        Row(iteration=0, prefill=[("ready", 1)], prefill_emitted=["ready"], active=["ready"], unused_budget=1),
        Row(iteration=1, prefill=[("new", 1)], prefill_emitted=["new"], active=["ready", "new"], unused_budget=1),
    )
    outcome = Outcome(
        termination=Termination.ITERATION_LIMIT,
        policy=policy,
        trace=rows,
        requests={
            name: RequestSummary(first_output=n, result=Result.ACTIVE) for n, name in enumerate(("ready", "new"))
        },
    )
    summary = summarize(Scenario(policy=policy, requests=requests), outcome, TUTORIAL, SECOND)
    assert summary.num_held_back == 1


def test_a_changed_policy_is_checked_like_one_in_a_file() -> None:
    """`--set` must not be a way around the checks."""
    scenario = parse_scenario((GOLDEN / "baseline.scenario.json").read_text())
    assert with_policy(scenario, {"max_queue": 0}).policy.max_queue == 0
    assert with_policy(scenario, {}) == scenario
