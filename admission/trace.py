"""What a simulation leaves: one row per iteration and one summary per request, in the schema of the golden traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from admission.scenario import Policy


class Termination(StrEnum):
    """Why a run ended."""

    ALL_TERMINAL = "all_terminal"
    ITERATION_LIMIT = "iteration_limit"


class Result(StrEnum):
    """How a request stands at the end of a run.

    WAITING: queued, preempted, or not arrived yet. LEFT: its client went, or its deadline passed, before its end.
    """

    COMPLETED = "completed"
    REJECTED = "rejected"
    ACTIVE = "active"
    WAITING = "waiting"
    LEFT = "left"


@dataclass(slots=True, kw_only=True)
class Row:
    """One iteration. Requests by id; ``prefill`` has (id, tokens); ``queue`` and ``active`` are as it ends.

    ``decode``, ``prefill`` and ``completed`` are in the order in which the active requests started, ``preempted`` and
    ``rejected`` in the order in which it happened.
    """

    iteration: int
    decode: list[str] = field(default_factory=list)
    prefill: list[tuple[str, int]] = field(default_factory=list)
    prefill_emitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    active: list[str] = field(default_factory=list)
    unused_budget: int | None

    def document(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "decode": self.decode,
            "prefill": [list(chunk) for chunk in self.prefill],
            "prefill_emitted": self.prefill_emitted,
            "preempted": self.preempted,
            "rejected": self.rejected,
            "completed": self.completed,
            "queue": self.queue,
            "active": self.active,
            "unused_budget": self.unused_budget,
        }


@dataclass(slots=True, kw_only=True)
class RequestSummary:
    """One request: the iterations of its first and its last output token, and how often it was preempted."""

    first_output: int | None = None
    completed: int | None = None
    preemptions: int = 0
    result: Result = Result.WAITING

    def document(self) -> dict[str, Any]:
        return {
            "first_output": self.first_output,
            "completed": self.completed,
            "preemptions": self.preemptions,
            "result": self.result.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole run. ``requests`` are in the order of the scenario."""

    termination: Termination
    policy: Policy
    trace: tuple[Row, ...]
    requests: dict[str, RequestSummary]

    def document(self) -> dict[str, Any]:
        """``scheduler_trace.json``."""
        return {
            "termination": self.termination.value,
            "policy": {
                "max_active": self.policy.max_active,
                "max_queue": self.policy.max_queue,
                "token_budget": self.policy.token_budget,
                "prefill_chunk": self.policy.prefill_chunk,
            },
            "trace": [row.document() for row in self.trace],
            "requests": self.request_documents(),
        }

    def request_documents(self) -> dict[str, Any]:
        """``request_summary.json``: the ``requests`` of the whole, on their own."""
        return {identifier: summary.document() for identifier, summary in self.requests.items()}
