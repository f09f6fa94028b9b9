"""Errors as HTTP answers, all in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

``code`` is the reason, as is the header ``x-sluicegate-reason``. ``Retry-After`` is in whole seconds (the standard),
and ``retry-after-ms`` beside it is what the official SDK prefers. ``x-should-retry: false`` tells the SDK not to repeat
what would end the same way; left alone it repeats 408, 409 and every 5xx.
"""

from __future__ import annotations

import math
import random
from http import HTTPStatus

import orjson
from aiohttp import web

from gateway.errors import Reason, Refused, Retry

DEFAULT_RETRY_S = (1.0, 6.0)
"""Without a prediction, a client is told to wait some time in this range: not the same for all, so that those refused
together do not come back together."""

_REASON_OF_STATUS = {
    HTTPStatus.NOT_FOUND: Reason.UNKNOWN_ROUTE,
    HTTPStatus.METHOD_NOT_ALLOWED: Reason.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Reason.BODY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: Reason.UNSUPPORTED_MEDIA_TYPE,
}


def error_body(refused: Refused) -> bytes:
    """The JSON of an error, as a body or in a stream's error event."""
    return orjson.dumps(
        {
            "error": {
                "message": refused.message,
                "type": refused.answer.error_type,
                "param": refused.param,
                "code": refused.reason,
            }
        }
    )


def error_response(refused: Refused) -> web.Response:
    """The answer to a request that is refused before anything was sent."""
    headers = {"x-sluicegate-reason": refused.reason.value}
    if refused.answer.retry is Retry.NO:
        headers["x-should-retry"] = "false"
    else:
        wait_s = refused.retry_after_s
        if wait_s is None:
            wait_s = random.uniform(*DEFAULT_RETRY_S)  # noqa: S311 - spreads clients, guards nothing
        headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
        headers["retry-after-ms"] = str(math.ceil(wait_s * 1000))
    if refused.reason is Reason.INVALID_API_KEY:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=refused.answer.status, body=error_body(refused), headers=headers, content_type="application/json"
    )


def bare_answer(refused: Refused) -> bytes:
    """An error as the bytes of a whole HTTP answer, for a connection that has no request yet. It closes."""
    body = error_body(refused)
    status = HTTPStatus(refused.answer.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\nx-sluicegate-reason: {refused.reason}\r\n\r\n"
    )
    return head.encode() + body


def http_exception_response(error: web.HTTPException) -> web.Response:
    """The refusals of aiohttp itself (no such route, wrong method, an ``Expect`` it does not know) in our shape."""
    reason = _REASON_OF_STATUS.get(HTTPStatus(error.status), Reason.INVALID_VALUE)
    response = error_response(Refused(reason, f"{error.reason}."))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def internal_error() -> Refused:
    """What a client may know of a fault of ours: nothing. The log has the rest."""
    return Refused(Reason.INTERNAL_ERROR, "The server failed to answer this request.")
