"""The tutorial's nine exit criteria, one test each, on its own scenarios. Exact traces are in ``test_golden``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from admission.presets import PRESETS, TUTORIAL
from admission.scenario import Policy, Priority, Request, Scenario, parse_scenario
from admission.simulate import simulate
from admission.trace import Outcome, Result, Row

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def scenario(name: str) -> Scenario:
    return parse_scenario((GOLDEN / f"{name}.scenario.json").read_text())


def run(name: str) -> Outcome:
    return simulate(scenario(name), TUTORIAL)


@pytest.fixture(scope="module")
def baseline() -> Outcome:
    return run("baseline")


def chunks_of(outcome: Outcome, request_id: str) -> list[tuple[int, int]]:
    """Iteration and tokens of each of its prefill chunks."""
    return [(row.iteration, tokens) for row in outcome.trace for name, tokens in row.prefill if name == request_id]


def test_1_lengths_budgets_priorities_and_rules_are_explicit() -> None:
    """Nothing that decides a trace may come from a default that the reader of the scenario cannot see."""
    required = {field.name for field in dataclasses.fields(Request)}
    assert required == {"id", "arrival", "priority", "prompt", "output"}
    assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(Request))
    explicit = [field.name for field in dataclasses.fields(Policy) if field.default is dataclasses.MISSING]
    assert explicit == ["max_active", "max_queue", "token_budget", "prefill_chunk"]
    assert list(Priority) == ["high", "normal"]
    rules = {field.name for field in dataclasses.fields(TUTORIAL)}
    assert {"batching", "waiting_order", "prefill", "kv_admission", "kv_victim", "slot_preemption", "progress"} <= rules


def test_2_decode_plus_prefill_never_exceeds_the_budget_of_six(baseline: Outcome) -> None:
    """The budget is what bounds the time of an iteration."""
    used = [len(row.decode) + sum(tokens for _, tokens in row.prefill) for row in baseline.trace]
    assert max(used) == baseline.policy.token_budget == 6
    assert [row.unused_budget for row in baseline.trace] == [6 - tokens for tokens in used]


def test_3_no_prefill_chunk_exceeds_three(baseline: Outcome) -> None:
    """The cap keeps one long prompt from taking the whole budget; with it at six, chunks of six are made."""

    def longest(outcome: Outcome) -> int:
        return max(tokens for row in outcome.trace for _, tokens in row.prefill)

    assert longest(baseline) == baseline.policy.prefill_chunk == 3
    assert longest(run("prefill_chunk_6")) > 3


def test_4_a_is_preempted_once_and_resumes_from_its_progress(baseline: Outcome) -> None:
    """Three of its six prompt tokens are done when C takes its slot; only the other three come after it."""
    assert [row.iteration for row in baseline.trace if "A" in row.preempted] == [1]
    assert baseline.requests["A"].preemptions == 1
    assert chunks_of(baseline, "A") == [(0, 3), (3, 3)]


def test_5_f_finds_the_queue_full_and_preemption_never_takes_the_queue_past_two(baseline: Outcome) -> None:
    """A victim takes a place in the queue like anybody else: where there is none, nobody is preempted."""
    assert [row.iteration for row in baseline.trace if "F" in row.rejected] == [2]
    assert baseline.requests["F"].result is Result.REJECTED
    crowded = run("high_arrival_when_all_full")
    for outcome in (baseline, crowded):
        assert max(len(row.queue) for row in outcome.trace) == outcome.policy.max_queue == 2
    assert crowded_out(crowded) == ["high"], "the high arrival was rejected: its victim would have had no place"


def crowded_out(outcome: Outcome) -> list[str]:
    priorities = {request.id: request.priority.value for request in scenario("high_arrival_when_all_full").requests}
    return [priorities[name] for row in outcome.trace for name in row.rejected if priorities[name] == "high"]


def test_6_first_outputs_and_completions_come_in_the_expected_iterations(baseline: Outcome) -> None:
    """The figures that the tutorial derives by hand."""
    moments = {name: (summary.first_output, summary.completed) for name, summary in baseline.requests.items()}
    assert moments == {"A": (3, 5), "B": (1, 2), "C": (1, 1), "D": (3, 4), "E": (5, 5), "F": (None, None)}


def test_7_overload_keeps_the_queue_at_two_or_less() -> None:
    """A bounded queue says no; an unbounded one lets everybody wait for ever longer."""
    outcome = run("sustained_overload")
    lengths = [len(row.queue) for row in outcome.trace]
    rejected = sum(len(row.rejected) for row in outcome.trace)
    assert max(lengths) == outcome.policy.max_queue == 2
    assert rejected > 0
    assert rejected + sum(s.result is Result.COMPLETED for s in outcome.requests.values()) == len(outcome.requests)


def page() -> str:
    return (ROOT / "docs" / "scheduling.md").read_text()


@pytest.mark.parametrize(
    ("figure", "denominators"),
    [
        (
            "Orca, 36.9 times",
            [
                "FasterTransformer with request-level",
                "175 billion",
                "FP16",
                "16 A100 of 40 GB",
                "6.81",
                "0.185",
                "190 ms",
            ],
        ),
        (
            "Anyscale 2023, up to 8 times",
            [
                "static batching in Hugging Face Pipelines",
                "OPT-13B",
                "one A100 of 40 GB",
                "1,000 requests of 512",
                "capped",
            ],
        ),
        ("Anyscale 2023, up to 23 times", ["vLLM", "the same baseline"]),
    ],
)
def test_8_historical_figures_are_documented_with_their_denominators(figure: str, denominators: list[str]) -> None:
    """A factor without what it was measured against says nothing."""
    (row,) = [line for line in page().splitlines() if line.startswith(f"| {figure} |")]
    assert [term for term in denominators if term not in row] == []


def test_9_the_gap_of_vllm_is_not_put_down_to_paged_attention_alone() -> None:
    """Two whole systems were compared; what each of their differences brought was not measured."""
    assert "It was not isolated to PagedAttention" in page()


def test_the_criteria_are_about_the_rule_that_the_traces_fix() -> None:
    """``tutorial`` is one of the presets that serve, not a program of its own."""
    assert PRESETS["tutorial"] is TUTORIAL
    assert isinstance(run("baseline").trace[0], Row)
