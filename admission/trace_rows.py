"""What a simulated trace leaves: a row per iteration, a record per request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from admission.events import PauseReason
from admission.trace import Result
from admission.trace_csv import Arrival


class Rejection(StrEnum):
    """Why a request was refused, by the names that the live gateway has for it."""

    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    CLASS_FULL = "class_full"
    SHED = "shed"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"


class Gap(NamedTuple):
    """Between two output tokens of ``times`` sequences of one class."""

    class_name: str
    iterations: int
    us: int
    times: int


@dataclass(slots=True, kw_only=True)
class Iteration:
    """One iteration, and what was decided since the one before. Requests by id, times in microseconds.

    ``num_waiting`` requests wait as it begins and ``peak_waiting`` waited at most since the one before; ``slots`` and
    ``kv_blocks`` are in use while it runs. ``unused_budget`` is None under a preset without a token budget, and
    ``kv_blocks`` when memory is not limited. ``num_held_back`` sequences were ready to decode and did not.
    """

    iteration: int
    at_us: int = 0
    took_us: int = 0
    num_arrived: int = 0
    rejected: list[tuple[str, Rejection]] = field(default_factory=list)
    preempted: list[tuple[str, PauseReason]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    num_decode: int = 0
    prefill: list[tuple[str, int]] = field(default_factory=list)
    prefill_emitted: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    num_waiting: int = 0
    peak_waiting: int = 0
    slots: int = 0
    kv_blocks: int | None = None
    unused_budget: int | None = None
    num_held_back: int = 0
    gaps: list[Gap] = field(default_factory=list)

    @property
    def prefill_tokens(self) -> int:
        return sum([tokens for _, tokens in self.prefill])

    def document(self) -> dict[str, Any]:
        """The row in a file. The sequences that decode are a number: who they are follows from the rows before."""
        return {
            "iteration": self.iteration,
            "at_us": self.at_us,
            "took_us": self.took_us,
            "arrived": self.num_arrived,
            "rejected": self.rejected,
            "preempted": self.preempted,
            "started": self.started,
            "decode": self.num_decode,
            "prefill": self.prefill,
            "prefill_emitted": self.prefill_emitted,
            "completed": self.completed,
            "queue": self.num_waiting,
            "active": self.slots,
            "kv_blocks": self.kv_blocks,
            "unused_budget": self.unused_budget,
        }


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """How one request fared. Iterations are those that ran; ``arrived_in`` is the first that began after it came.

    With several drivers, iterations are numbered over all of them, as they begin.
    """

    arrival: Arrival
    arrived_in: int
    result: Result = Result.WAITING
    rejection: Rejection | None = None
    first_output: int | None = None
    first_output_us: int | None = None
    completed: int | None = None
    completed_us: int | None = None
    slot_preemptions: int = 0
    kv_preemptions: int = 0

    def reject(self, reason: Rejection) -> None:
        self.result, self.rejection = Result.REJECTED, reason

    def complete(self, iteration: int, now_us: int) -> None:
        self.result, self.completed, self.completed_us = Result.COMPLETED, iteration, now_us

    def document(self) -> dict[str, Any]:
        arrival = self.arrival
        return {
            "class": arrival.cls.name,
            "arrival_us": arrival.arrival_us,
            "prompt_tokens": arrival.prompt_tokens,
            "output_tokens": arrival.output_tokens,
            "first_output": self.first_output,
            "first_output_us": self.first_output_us,
            "completed": self.completed,
            "completed_us": self.completed_us,
            "preemptions": self.slot_preemptions + self.kv_preemptions,
            "result": self.result.value,
            "rejection": self.rejection,
        }
