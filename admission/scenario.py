"""Scenarios: a policy and a list of requests, in the JSON of the golden traces, read strictly.

Everything that is not exactly right is refused with an error that names the field: keys that are unknown, missing or
given twice, booleans and fractions where a whole number belongs, limits that cannot work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

DEFAULT_MAX_ITERATIONS = 200
MOST_ITERATIONS = 1_000_000
"""Each iteration is a row of the trace, in memory: about a gigabyte at this bound."""

MOST = 1_000_000_000
"""Of anything: a larger number is a slip, and sums of many such still fit a machine's integers."""

_POLICY_REQUIRED = ("max_active", "max_queue", "token_budget", "prefill_chunk")
_POLICY_OPTIONAL = ("max_iterations", "priority_preemption")
_REQUEST_KEYS = ("id", "arrival", "priority", "prompt", "output")


class ScenarioError(ValueError):
    """The scenario is not usable; the message is one sentence that names the field."""


class Priority(StrEnum):
    """The two classes of a scenario."""

    HIGH = "high"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of a run. Tokens are per iteration; ``max_queue`` bounds what waits, preempted requests included."""

    max_active: int
    max_queue: int
    token_budget: int
    prefill_chunk: int
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    priority_preemption: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: it arrives at the start of iteration ``arrival``, and emits exactly ``output`` tokens."""

    id: str
    arrival: int
    priority: Priority
    prompt: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a simulation runs. ``requests`` are in the order of the file, which orders equal arrivals."""

    policy: Policy
    requests: tuple[Request, ...]


def parse_scenario(text: str) -> Scenario:
    """Read a scenario from JSON. Raises ``ScenarioError``."""
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except ScenarioError:
        raise
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"not valid JSON: {error}") from error
    scenario = _fields(document, "the scenario", required=("policy", "requests"))
    requests = scenario["requests"]
    if not isinstance(requests, list) or not requests:
        raise ScenarioError("requests must be a list of at least one request")
    parsed = tuple(_request(request, f"requests[{index}]") for index, request in enumerate(requests))
    seen: dict[str, int] = {}
    for index, request in enumerate(parsed):
        if request.id in seen:
            raise ScenarioError(
                f"requests[{index}].id {request.id!r} is already the id of requests[{seen[request.id]}]"
            )
        seen[request.id] = index
    return Scenario(policy=_policy(scenario["policy"]), requests=parsed)


def with_policy(scenario: Scenario, changes: Mapping[str, object]) -> Scenario:
    """The same requests under a policy of which some fields are changed. Raises ``ScenarioError``."""
    return replace(scenario, policy=_policy({**asdict(scenario.policy), **changes}))


def _policy(value: object) -> Policy:
    fields = _fields(value, "policy", required=_POLICY_REQUIRED, optional=_POLICY_OPTIONAL)
    preemption = fields.get("priority_preemption", True)
    if not isinstance(preemption, bool):
        raise ScenarioError("policy.priority_preemption must be true or false")
    policy = Policy(
        max_active=_whole(fields["max_active"], "policy.max_active", least=1),
        max_queue=_whole(fields["max_queue"], "policy.max_queue", least=0),
        token_budget=_whole(fields["token_budget"], "policy.token_budget", least=1),
        prefill_chunk=_whole(fields["prefill_chunk"], "policy.prefill_chunk", least=1),
        max_iterations=_whole(fields.get("max_iterations", DEFAULT_MAX_ITERATIONS), "policy.max_iterations", least=1),
        priority_preemption=preemption,
    )
    if policy.max_active > policy.token_budget:
        raise ScenarioError("policy.max_active must be at most policy.token_budget: every active request decodes")
    if policy.max_iterations > MOST_ITERATIONS:
        raise ScenarioError(f"policy.max_iterations must be at most {MOST_ITERATIONS}")
    return policy


def _request(value: object, name: str) -> Request:
    fields = _fields(value, name, required=_REQUEST_KEYS)
    identifier = fields["id"]
    if not isinstance(identifier, str) or not identifier:
        raise ScenarioError(f"{name}.id must be a text that is not empty")
    priority = fields["priority"]
    if not isinstance(priority, str) or priority not in tuple(Priority):
        raise ScenarioError(f"{name}.priority must be one of: {', '.join(Priority)}")
    return Request(
        id=identifier,
        arrival=_whole(fields["arrival"], f"{name}.arrival", least=0),
        priority=Priority(priority),
        prompt=_whole(fields["prompt"], f"{name}.prompt", least=1),
        output=_whole(fields["output"], f"{name}.output", least=1),
    )


def _fields(
    value: object, name: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ScenarioError(f"{name} must be an object")
    for key in value:
        if key not in required and key not in optional:
            raise ScenarioError(f"{name} has an unknown key {key!r}")
    for key in required:
        if key not in value:
            raise ScenarioError(f"{name} lacks the key {key!r}")
    return value


def _whole(value: object, name: str, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScenarioError(f"{name} must be a whole number")
    if value < least:
        raise ScenarioError(f"{name} must be at least {least}")
    if value > MOST:
        raise ScenarioError(f"{name} must be at most {MOST}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ScenarioError(f"the key {key!r} is given twice in one object")
        fields[key] = value
    return fields


def _refuse_constant(name: str) -> None:
    raise ScenarioError(f"not valid JSON: {name}")
