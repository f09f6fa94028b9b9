"""Every reason as an HTTP answer."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from gateway.errors import ANSWERS, Reason, Refused, Retry
from gateway.http_errors import error_response, http_exception_response


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_whole_answer(reason: Reason) -> None:
    """Status, body and headers come from one table; a reason without them would be a 500."""
    response = error_response(Refused(reason, "No.", param="x"))
    assert response.status == ANSWERS[reason].status
    assert isinstance(response.body, bytes)
    error = json.loads(response.body)["error"]
    assert error == {"message": "No.", "type": ANSWERS[reason].error_type, "param": "x", "code": reason.value}
    assert response.headers["x-sluicegate-reason"] == reason
    assert ("Retry-After" in response.headers) == (ANSWERS[reason].retry is not Retry.NO)
    assert ("x-should-retry" in response.headers) == (ANSWERS[reason].retry is Retry.NO)


def test_without_a_prediction_clients_are_sent_back_at_different_times() -> None:
    """Those refused together must not return together."""
    waits = {error_response(Refused(Reason.DRAINING, "No.")).headers["retry-after-ms"] for _ in range(50)}
    assert len(waits) > 10
    assert all(1000 <= int(wait) <= 6000 for wait in waits)


def test_whole_seconds_never_promise_less_than_the_milliseconds() -> None:
    """Clients read either."""
    headers = error_response(Refused(Reason.QUEUE_FULL, "No.", retry_after_s=0.0101)).headers
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("1", "11")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (web.HTTPNotFound(), 404, "unknown_route"),
        (web.HTTPMethodNotAllowed("PUT", ["POST"]), 405, "method_not_allowed"),
        (web.HTTPRequestEntityTooLarge(1, 2), 413, "body_too_large"),
        (web.HTTPExpectationFailed(), 400, "invalid_value"),
    ],
)
def test_refusals_of_the_http_library_get_our_shape(error: web.HTTPException, status: int, code: str) -> None:
    """Its pages of text are unreadable to an OpenAI client."""
    response = http_exception_response(error)
    assert isinstance(response.body, bytes)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)
