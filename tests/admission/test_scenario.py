"""Scenarios are read strictly: each mistake is refused with the name of its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.scenario import Priority, ScenarioError, parse_scenario


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "policy": {"max_active": 2, "max_queue": 0, "token_budget": 6, "prefill_chunk": 3},
        "requests": [request()],
    } | changes


def request(**changes: Any) -> dict[str, Any]:
    return {"id": "A", "arrival": 0, "priority": "normal", "prompt": 6, "output": 3} | changes


def policy(**changes: Any) -> dict[str, Any]:
    return scenario()["policy"] | changes


def without(fields: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


def test_the_optional_keys_have_their_stated_defaults() -> None:
    """The golden scenarios leave them out or not; both must mean the same."""
    parsed = parse_scenario(json.dumps(scenario()))
    assert (parsed.policy.max_iterations, parsed.policy.priority_preemption) == (200, True)
    assert parsed.requests[0].priority is Priority.NORMAL


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "the scenario"),
        (scenario(extra=1), "extra"),
        (without(scenario(), "policy"), "policy"),
        (without(scenario(), "requests"), "requests"),
        (scenario(policy=3), "policy"),
        (scenario(policy=policy(burst=1)), "burst"),
        *((scenario(policy=without(policy(), key)), key) for key in policy()),
        *((scenario(policy=policy(**{key: -1})), key) for key in [*policy(), "max_iterations"]),
        *((scenario(policy=policy(**{key: True})), key) for key in [*policy(), "max_iterations"]),
        *((scenario(policy=policy(**{key: 2.0})), key) for key in [*policy(), "max_iterations"]),
        *((scenario(policy=policy(**{key: None})), key) for key in [*policy(), "max_iterations"]),
        *((scenario(policy=policy(**{key: 0})), key) for key in without(policy(), "max_queue")),
        (scenario(policy=policy(max_iterations=0)), "max_iterations"),
        (scenario(policy=policy(max_iterations=10**9)), "max_iterations"),
        (scenario(policy=policy(max_active=7)), "max_active"),
        *((scenario(policy=policy(priority_preemption=value)), "priority_preemption") for value in (1, "true", None)),
        (scenario(requests=[]), "requests"),
        (scenario(requests={}), "requests"),
        (scenario(requests=[3]), r"requests\[0\]"),
        (scenario(requests=[request(), request()]), r"requests\[1\].id 'A'"),
        (scenario(requests=[request(note="x")]), "note"),
        *((scenario(requests=[without(request(), key)]), key) for key in request()),
        *((scenario(requests=[request(id=value)]), r"\.id") for value in ("", 3, None, ["A"])),
        *((scenario(requests=[request(priority=value)]), r"\.priority") for value in ("low", "HIGH", 1, None, [])),
        *((scenario(requests=[request(arrival=value)]), r"\.arrival") for value in (-1, "0", 0.5, True, None)),
        *((scenario(requests=[request(prompt=value)]), r"\.prompt") for value in (0, -1, "1", 1.0, True, None)),
        *((scenario(requests=[request(output=value)]), r"\.output") for value in (0, -1, "1", 1.0, True, None)),
    ],
)
def test_a_mistake_is_refused_by_name(document: object, field: str) -> None:
    """Guessing what was meant gives a trace of something else."""
    with pytest.raises(ScenarioError, match=field):
        parse_scenario(json.dumps(document))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        json.dumps(scenario())[:-1],
        json.dumps(scenario()) + "x",
        '{"policy": NaN}',
        '{"policy": {}, "policy": {}}',
        "[" * 100_000,
        '{"policy": ' + "9" * 5_000 + "}",
        "\x00",
    ],
)
def test_broken_text_is_refused(text: str) -> None:
    """Truncated and hostile files end in the same kind of error."""
    with pytest.raises(ScenarioError):
        parse_scenario(text)
