"""Every way to say no, in one table: reason, HTTP status, OpenAI error type, and whether a client may try again.

429 is the cluster speaking (back off), 503 means somebody else may serve (a balancer retries elsewhere). Text for the
client is apart from text for the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The ``code`` of an error body and the value of ``x-sluicegate-reason``. A closed list, used as metric label."""

    QUEUE_FULL = "queue_full"
    CLASS_FULL = "class_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    SHED = "shed"
    TENANT_LIMIT = "tenant_limit"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NO_WORKER = "no_worker"
    STORE_UNAVAILABLE = "store_unavailable"
    DRAINING = "draining"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_ROUTE = "unknown_route"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_VALUE = "invalid_value"
    INVALID_API_KEY = "invalid_api_key"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    HEADERS_TOO_LARGE = "headers_too_large"
    HTTP_VERSION = "http_version"
    WORKER_LOST = "worker_lost"
    SLOW_CLIENT = "slow_client"
    INTERNAL_ERROR = "internal_error"


class Retry(StrEnum):
    """What a client is told about trying again."""

    NO = "no"  # `x-should-retry: false`
    BACK_OFF = "back_off"  # Retry-After from the predicted drain time
    ELSEWHERE = "elsewhere"  # Retry-After short: another replica may serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one reason looks over HTTP."""

    status: int
    error_type: str
    retry: Retry


_INVALID = "invalid_request_error"

ANSWERS: dict[Reason, Answer] = {
    Reason.QUEUE_FULL: Answer(status=429, error_type="rate_limit_error", retry=Retry.BACK_OFF),
    Reason.CLASS_FULL: Answer(status=429, error_type="rate_limit_error", retry=Retry.BACK_OFF),
    Reason.QUEUE_TOKENS_FULL: Answer(status=429, error_type="rate_limit_error", retry=Retry.BACK_OFF),
    Reason.SHED: Answer(status=429, error_type="rate_limit_error", retry=Retry.BACK_OFF),
    Reason.TENANT_LIMIT: Answer(status=429, error_type="rate_limit_error", retry=Retry.BACK_OFF),
    Reason.DEADLINE_UNREACHABLE: Answer(status=429, error_type="rate_limit_error", retry=Retry.BACK_OFF),
    Reason.DEADLINE_EXCEEDED: Answer(status=504, error_type="timeout_error", retry=Retry.NO),
    Reason.NO_WORKER: Answer(status=503, error_type="service_unavailable_error", retry=Retry.ELSEWHERE),
    Reason.STORE_UNAVAILABLE: Answer(status=503, error_type="service_unavailable_error", retry=Retry.ELSEWHERE),
    Reason.DRAINING: Answer(status=503, error_type="service_unavailable_error", retry=Retry.ELSEWHERE),
    Reason.TOO_MANY_CONNECTIONS: Answer(status=503, error_type="service_unavailable_error", retry=Retry.ELSEWHERE),
    Reason.UNKNOWN_MODEL: Answer(status=404, error_type=_INVALID, retry=Retry.NO),
    Reason.UNKNOWN_ROUTE: Answer(status=404, error_type=_INVALID, retry=Retry.NO),
    Reason.CONTEXT_LENGTH_EXCEEDED: Answer(status=400, error_type=_INVALID, retry=Retry.NO),
    Reason.INVALID_VALUE: Answer(status=400, error_type=_INVALID, retry=Retry.NO),
    Reason.INVALID_API_KEY: Answer(status=401, error_type="authentication_error", retry=Retry.NO),
    Reason.METHOD_NOT_ALLOWED: Answer(status=405, error_type=_INVALID, retry=Retry.NO),
    Reason.REQUEST_TIMEOUT: Answer(status=408, error_type=_INVALID, retry=Retry.NO),
    Reason.BODY_TOO_LARGE: Answer(status=413, error_type=_INVALID, retry=Retry.NO),
    Reason.UNSUPPORTED_MEDIA_TYPE: Answer(status=415, error_type=_INVALID, retry=Retry.NO),
    Reason.HEADERS_TOO_LARGE: Answer(status=431, error_type=_INVALID, retry=Retry.NO),
    Reason.HTTP_VERSION: Answer(status=505, error_type=_INVALID, retry=Retry.NO),
    Reason.WORKER_LOST: Answer(status=500, error_type="server_error", retry=Retry.NO),
    Reason.SLOW_CLIENT: Answer(status=500, error_type="server_error", retry=Retry.NO),
    Reason.INTERNAL_ERROR: Answer(status=500, error_type="server_error", retry=Retry.NO),
}


class Refused(Exception):
    """A request that is not (or no longer) served, for a reason its client may know.

    ``param`` names the offending field; ``retry_after_s`` is set where the reason's answer asks for one.
    """

    def __init__(
        self, reason: Reason, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def answer(self) -> Answer:
        return ANSWERS[self.reason]
