"""The account of one generation request: counted once, timed, and written to the log as one line."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum

import structlog

from admission.record.entries import Answered
from gateway.dispatch import Tokens
from gateway.door_log import DoorLog
from gateway.errors import Reason
from gateway.metrics import NO_CLASS, Metrics

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Ending(StrEnum):
    """How a request ended, when it was not refused."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Place(StrEnum):
    """Where a request was when it ended, as its origin sees it."""

    DOOR = "door"
    QUEUE = "queue"  # nothing has come of it yet: it waits, or its prompt is being computed
    RUNNING = "running"


class RequestRecord:
    """Opened when a request is received, ended exactly once. What is learned on the way is set as attributes.

    The log line never holds what the client wrote, save for a checked request id; ``model`` is set once it is known to
    be a model of ours.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        endpoint: str,
        request_id: str,
        client_request_id: str | None,
        door: DoorLog | None = None,
    ) -> None:
        self._metrics = metrics.requests
        self._door = door
        self._request_id = request_id
        self._client_request_id = client_request_id
        self._first_token_s: float | None = None
        self._started_s = time.monotonic()
        self._last_token_s: float | None = None
        self._log = log.bind(endpoint=endpoint, request_id=request_id, client_request_id=client_request_id)
        self._ended = False
        self.model: str | None = None
        self.class_name: str | None = None
        self.tenant = ""
        self.prompt_tokens: int | None = None
        self.completion_tokens = 0
        self.is_queued = False
        self._metrics.open.inc()

    def items_arrived(self, arrived: Iterable[tuple[int, Tokens]]) -> None:
        """Time the arrival of output; what comes together counts once."""
        if any(item.token_ids for _, item in arrived):
            self.tokens_arrived()

    def tokens_arrived(self) -> None:
        """Time the arrival of some tokens."""
        now_s = time.monotonic()
        if self._last_token_s is None:
            self._first_token_s = now_s
            self._metrics.first_token.labels(self.class_name or NO_CLASS).observe(now_s - self._started_s)
        else:
            self._metrics.inter_token.observe(now_s - self._last_token_s)
        self._last_token_s = now_s

    @property
    def _place(self) -> Place:
        if self._last_token_s is not None:
            return Place.RUNNING
        return Place.QUEUE if self.is_queued else Place.DOOR

    def failed(self, error: BaseException) -> None:
        """Log a fault of ours; the client hears only that there was one."""
        self._log.error("request_failed", exc_info=error)

    def end(self, outcome: Ending | Reason, *, status: int) -> None:
        """Count and log the request. ``status`` is what the client got, 499 when it had left."""
        if self._ended:
            raise RuntimeError("a request ends once")
        self._ended = True
        self._metrics.open.dec()
        self._metrics.ended.labels(outcome.value, self.class_name or NO_CLASS).inc()
        if outcome is Reason.DEADLINE_EXCEEDED:
            self._metrics.deadlines_exceeded.labels(place=self._place.value).inc()
        if self._door is not None:
            self._door.answered(self._answered(outcome, status))
        self._log.info(
            "request",
            outcome=outcome.value,
            status=status,
            model=self.model,
            class_name=self.class_name,
            tenant=self.tenant or None,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            duration_ms=round((time.monotonic() - self._started_s) * 1000, 1),
        )

    def _answered(self, outcome: Ending | Reason, status: int) -> Answered:
        return Answered(
            now_us=_us(time.monotonic()),
            request_id=self._request_id,
            client_request_id=self._client_request_id,
            model=self.model or "",
            class_name=self.class_name or NO_CLASS,
            received_us=_us(self._started_s),
            first_token_us=None if self._first_token_s is None else _us(self._first_token_s),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.completion_tokens,
            outcome=outcome.value,
            status=status,
        )


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
