"""The simulation against an independent, plain writing of the tutorial's rule, on generated scenarios."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.presets import PRESETS, PrefillRule
from admission.scenario import Policy, Priority, Request, Scenario
from admission.simulate import simulate
from tests.admission.reference import reference
from tests.examples import examples

ROOT = Path(__file__).parents[2]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    slots = draw(st.integers(1, 4))
    policy = Policy(
        max_active=slots,
        max_queue=draw(st.integers(0, 4)),
        token_budget=slots + draw(st.integers(0, 8)),
        prefill_chunk=draw(st.integers(1, 8)),
        max_iterations=draw(st.sampled_from([1, 3, 8, 200])),
        priority_preemption=draw(st.booleans()) or draw(st.booleans()),
    )
    last_arrival = draw(st.sampled_from([0, 2, 6, 40]))
    shape = st.tuples(
        st.integers(0, last_arrival), st.sampled_from(list(Priority)), st.integers(1, 12), st.integers(1, 8)
    )
    requests = tuple(
        Request(id=f"r{number}", arrival=arrival, priority=priority, prompt=prompt, output=output)
        for number, (arrival, priority, prompt, output) in enumerate(draw(st.lists(shape, min_size=1, max_size=14)))
    )
    return Scenario(policy=policy, requests=requests)


@settings(max_examples=examples(400), deadline=None)
@given(scenario=scenarios())
def test_any_scenario_gives_what_the_plain_rule_gives(scenario: Scenario) -> None:
    """The golden traces are few; the rule must hold for scenarios that nobody has drawn up."""
    outcome = simulate(scenario, PRESETS["tutorial"])
    assert outcome.document() == reference(scenario.policy, scenario.requests)


@settings(max_examples=examples(100), deadline=None)
@given(scenario=scenarios(), preset=st.sampled_from(list(PRESETS)))
def test_no_preset_exceeds_slots_queue_or_budget(scenario: Scenario, preset: str) -> None:
    """The bounds of a scenario hold under every policy; presets that compute prompts whole have no token budget."""
    for row in simulate(scenario, PRESETS[preset]).trace:
        if PRESETS[preset].prefill is PrefillRule.WHOLE:
            assert row.unused_budget is None
        else:
            assert row.unused_budget is not None
            assert row.unused_budget >= 0
        assert len(row.queue) <= scenario.policy.max_queue
        assert len(row.active) <= scenario.policy.max_active


def run(requests: list[tuple[int, str, int, int]], **policy: Any) -> dict[str, Any]:
    limits = {"max_active": 1, "max_queue": 2, "token_budget": 6, "prefill_chunk": 3} | policy
    return simulate(
        Scenario(
            policy=Policy(**limits),
            requests=tuple(
                Request(id=f"r{n}", arrival=arrival, priority=Priority(priority), prompt=prompt, output=output)
                for n, (arrival, priority, prompt, output) in enumerate(requests)
            ),
        ),
        PRESETS["tutorial"],
    ).document()


def test_a_request_admitted_in_this_iteration_can_be_preempted_in_it() -> None:
    """Arrivals are taken one by one, each against the state that the one before has left."""
    trace = run([(0, "normal", 1, 1), (0, "high", 1, 1)])["trace"]
    assert trace[0]["preempted"] == ["r0"]
    assert trace[0]["completed"] == ["r1"]


def test_several_high_arrivals_preempt_one_by_one_and_the_last_victim_is_in_front() -> None:
    """Each victim goes to the front of the queue, before the victims of the same iteration."""
    row = run([(0, "normal", 9, 1), (0, "normal", 8, 1), (1, "high", 9, 1), (1, "high", 9, 1)], max_active=2)["trace"][
        1
    ]
    assert row["preempted"] == ["r0", "r1"] or row["preempted"] == ["r1", "r0"]
    assert row["queue"] == row["preempted"][::-1]


def test_without_a_queue_nothing_is_preempted() -> None:
    """The victim would have no place."""
    document = run([(0, "normal", 9, 1), (1, "high", 1, 1)], max_queue=0)
    assert document["requests"]["r1"]["result"] == "rejected"
    assert document["requests"]["r0"]["preemptions"] == 0


def test_a_preempted_request_that_decodes_keeps_its_progress() -> None:
    """Progress is retained: it goes on with the next token, without prefill."""
    document = run([(0, "normal", 1, 4), (2, "high", 1, 1)])
    assert document["trace"][3]["decode"] == ["r0"]
    assert document["requests"]["r0"] == {"first_output": 0, "completed": 4, "preemptions": 1, "result": "completed"}


def test_idle_iterations_are_rows_of_their_own() -> None:
    """The trace is a time line: an iteration in which nothing happens is one."""
    document = run([(0, "normal", 1, 1), (9, "normal", 1, 1)])
    assert len(document["trace"]) == 10
    assert all(row["unused_budget"] == 6 for row in document["trace"][1:9])


def test_a_request_that_has_not_arrived_at_the_limit_is_waiting() -> None:
    """It is neither refused nor begun."""
    document = run([(0, "normal", 1, 1), (9, "normal", 1, 1)], max_iterations=2)
    assert document["termination"] == "iteration_limit"
    assert document["requests"]["r1"]["result"] == "waiting"


EVERY_PRESET = """
import sys
from admission.presets import PRESETS
from gateway.simulate_command import simulate_main
for preset in PRESETS:
    assert simulate_main([sys.argv[1], "--preset", preset]) == 0
"""


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    """Replay is worth nothing if the order of a set or dict of one process decides, whatever the preset."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", EVERY_PRESET, "tests/golden/sustained_overload.scenario.json"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b'"termination"') == len(PRESETS)
