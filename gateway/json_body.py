"""Reading a request's body: one JSON object, bounded in bytes, in time and in depth.

The parser (orjson) refuses NaN, infinities, numbers that overflow a double, lone surrogates, invalid UTF-8 and more
than 1024 levels of nesting, and never recurses in Python. The schema bounds depth further: no field takes nested
values beyond its own shape. Integers beyond 64 bits arrive as floats, which no integer field accepts.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import hdrs, web

from gateway.body_room import BodyShare
from gateway.errors import Reason, Refused


async def read_object(request: web.Request, share: BodyShare, *, max_bytes: int, timeout_s: float) -> dict[str, Any]:
    """The request's JSON object. Raises ``Refused`` with 400, 408, 413, 415, or 503 when there is no room for it."""
    _check_type(request)
    body = await _read(request, share, max_bytes=max_bytes, timeout_s=timeout_s)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(Reason.INVALID_VALUE, f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Refused(Reason.INVALID_VALUE, "The body should be a JSON object.")
    return value


def _check_type(request: web.Request) -> None:
    try:
        charset = request.charset or "utf-8"
    except ValueError:
        charset = "unknown"
    if request.content_type != "application/json" or charset.lower() not in {"utf-8", "utf8"}:
        raise Refused(Reason.UNSUPPORTED_MEDIA_TYPE, "The body should be application/json in UTF-8.")
    # Nothing is ever inflated here: a small compressed body can hold any number of bytes.
    codings = _codings(request, hdrs.CONTENT_ENCODING) - {"identity"} | _codings(request, hdrs.TRANSFER_ENCODING) - {
        "chunked"
    }
    if codings:
        raise Refused(Reason.UNSUPPORTED_MEDIA_TYPE, "Compressed bodies are not accepted.")


def _codings(request: web.Request, header: str) -> set[str]:
    """What all headers of this name list."""
    return {coding.strip().lower() for line in request.headers.getall(header, ()) for coding in line.split(",")}


async def _read(request: web.Request, share: BodyShare, *, max_bytes: int, timeout_s: float) -> bytes:
    too_large = Refused(Reason.BODY_TOO_LARGE, f"The body is larger than {max_bytes} bytes.")
    if request.content_length is not None and request.content_length > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
                share.take(len(chunk))
    except TimeoutError:
        raise Refused(Reason.REQUEST_TIMEOUT, f"The body did not arrive within {timeout_s:g} s.") from None
    except web.RequestPayloadError:
        raise Refused(Reason.INVALID_VALUE, "The body is not well-formed HTTP.") from None
    return bytes(body)
