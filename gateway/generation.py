"""The path of a generation request, the same for both endpoints.

It is taken in (``gateway.intake``), then tokens arrive, and become one answer or a stream. Whatever happens, the
request's record is ended once, and a sequence that did not end by itself is cancelled.
"""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import hdrs, web

from gateway.api import API, Api
from gateway.chunks import DONE, ChunkWriter
from gateway.clock import monotonic_us
from gateway.deadlines import Deadline
from gateway.dispatch import Tokens
from gateway.errors import Reason, Refused
from gateway.http_errors import error_body, error_response, internal_error
from gateway.intake import CLASS_HEADER, Arrival, Body, Endpoint, Started, start
from gateway.record import Ending, RequestRecord
from gateway.request_ids import ids_of
from gateway.sse import ClientGone, ClientTooSlow, SseResponse

CLIENT_LEFT_STATUS = 499
"""What logs show, by custom, for a client that left before its answer."""


async def answer(request: web.Request, endpoint: Endpoint[Body]) -> web.StreamResponse:
    """Handle a request to ``endpoint``."""
    api = request.app[API]
    ids = ids_of(request)
    deadline = Deadline(monotonic_us)
    record = RequestRecord(api.metrics, endpoint=endpoint.path, request_id=ids.own, client_request_id=ids.client)
    try:
        caller = api.keys.identify(request.headers.get(hdrs.AUTHORIZATION))
        record.tenant = caller.tenant
        with api.keys.admitted(caller):
            arrival = Arrival(api=api, request=request, caller=caller, record=record, deadline=deadline)
            return await _answer(arrival, endpoint)
    except Refused as refused:
        record.end(refused.reason, status=refused.answer.status)
        return _error(refused, record)
    except asyncio.CancelledError:
        record.end(Ending.CANCELLED, status=CLIENT_LEFT_STATUS)
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
        record.failed(error)
        record.end(Reason.INTERNAL_ERROR, status=internal_error().answer.status)
        return _error(internal_error(), record)


async def _answer(arrival: Arrival, endpoint: Endpoint[Body]) -> web.StreamResponse:
    """Answer, and leave nothing running behind."""
    started = await start(arrival, endpoint)
    try:
        if started.body.stream:
            return await _answer_stream(started, arrival.request, arrival.api)
        return await _answer_whole(started)
    finally:
        if started.output.finish is not None:
            started.stream.complete()
        else:
            started.stream.cancel("the answer was given up")


async def _answer_whole(started: Started[Body]) -> web.Response:
    texts = []
    async for item in started.stream:
        texts.append(started.take(item))
        if started.output.finish is not None:
            break
        if item.error is not None:
            raise _failure(item)
    if started.output.finish is None:
        raise RuntimeError("the sequence ended without an end")
    endpoint = started.endpoint
    reply = started.head.as_json(endpoint.whole_object_name) | {
        "choices": [endpoint.whole("".join(texts), started.output.finish)],
        "usage": started.usage.as_json(),
    }
    started.record.end(Ending.COMPLETED, status=200)
    return web.Response(body=orjson.dumps(reply), headers=started.headers, content_type="application/json")


async def _answer_stream(started: Started[Body], request: web.Request, api: Api) -> web.StreamResponse:
    sse = SseResponse(request, started.headers, slow_client_s=api.settings.slow_client_s)
    outcome: Ending | Reason
    try:
        outcome = await _send(started, sse)
    except ClientGone:
        outcome = Ending.CANCELLED
    except ClientTooSlow:
        outcome = Reason.SLOW_CLIENT
        sse.cut()
    started.record.end(outcome, status=200)
    return sse.response


async def _send(started: Started[Body], sse: SseResponse) -> Ending | Reason:
    """Send the stream, to its end or to an error event. Before the first write errors are raised instead."""
    try:
        await _send_tokens(started, sse)
    except Refused as refused:
        if not sse.started:
            raise
        failure = refused
    except (ClientGone, ClientTooSlow):
        raise
    except Exception as error:
        if not sse.started:
            raise
        started.record.failed(error)
        failure = internal_error()
    else:
        return Ending.COMPLETED
    await sse.write(b"data: " + error_body(failure) + b"\n\n")
    return failure.reason


async def _send_tokens(started: Started[Body], sse: SseResponse) -> None:
    output = started.output
    chunks = ChunkWriter(started.head, started.endpoint.choice, include_usage=started.body.include_usage)
    opening = chunks.opening()
    async for item in started.stream:
        events = chunks.text(started.take(item))
        if opening and (item.token_ids or output.finish is not None):
            events, opening = opening + events, b""
        if output.finish is not None:
            events += chunks.finish(output.finish)
            if started.body.include_usage:
                events += chunks.usage(started.usage)
            await sse.write(events + DONE)
            return
        if events:
            await sse.write(events)
        if item.error is not None:
            raise _failure(item)
    raise RuntimeError("the sequence ended without an end")


def _failure(item: Tokens) -> Refused:
    return Refused(
        item.error or Reason.INTERNAL_ERROR,
        item.message or "The answer could not be completed.",
        retry_after_s=item.retry_after_s,
    )


def _error(refused: Refused, record: RequestRecord) -> web.Response:
    response = error_response(refused)
    if record.class_name is not None:
        response.headers[CLASS_HEADER] = record.class_name
    return response
