"""The path of a generation request, the same for both endpoints.

It is taken in (``gateway.intake``), then tokens arrive, and become one answer or a stream. Whatever happens, the
request's record is ended once, and a sequence that did not end by itself is cancelled.
"""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from gateway.api import API, Api
from gateway.clock import monotonic_us
from gateway.deadlines import Deadline
from gateway.early import kept_alive
from gateway.endpoint import Body, Endpoint
from gateway.errors import Reason, Refused
from gateway.fan_in import reading
from gateway.http_errors import error_body, error_response, internal_error
from gateway.intake import CLASS_HEADER, Arrival, start
from gateway.record import Ending, RequestRecord
from gateway.reply import Reply, check_failures
from gateway.reply_events import ReplyEvents
from gateway.request_ids import ids_of
from gateway.short_cut import stream_at_once
from gateway.sse import ClientGone, ClientTooSlow, SseResponse
from gateway.whole import whole_answer

CLIENT_LEFT_STATUS = 499
"""What logs show, by custom, for a client that left before its answer."""


async def answer(request: web.Request, endpoint: Endpoint[Body]) -> web.StreamResponse:
    """Handle a request to ``endpoint``."""
    api = request.app[API]
    ids = ids_of(request)
    deadline = Deadline(monotonic_us)
    record = RequestRecord(
        api.metrics, endpoint=endpoint.path, request_id=ids.own, client_request_id=ids.client, door=api.door
    )
    try:
        caller = api.keys.identify(*request.headers.getall(hdrs.AUTHORIZATION, ()))
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
    reply = await start(arrival, endpoint)
    try:
        if reply.body.stream:
            return await _answer_stream(reply, arrival.request, arrival.api)
        return await _answer_whole(reply)
    finally:
        reply.cancel()


async def _answer_whole(reply: Reply[Body]) -> web.Response:
    body = await whole_answer(reply)
    reply.record.end(Ending.COMPLETED, status=200)
    return web.Response(body=body, headers=reply.headers, content_type="application/json")


async def _answer_stream(reply: Reply[Body], request: web.Request, api: Api) -> web.StreamResponse:
    sse = SseResponse(request, reply.headers, slow_client_s=api.settings.slow_client_s)
    outcome: Ending | Reason
    try:
        outcome = await _send(reply, sse, early_comment_s=api.settings.early_comment_s)
    except ClientGone:
        outcome = Ending.CANCELLED
    except ClientTooSlow:
        outcome = Reason.SLOW_CLIENT
        sse.cut()
    reply.record.end(outcome, status=200)
    return sse.response


async def _send(reply: Reply[Body], sse: SseResponse, *, early_comment_s: float) -> Ending | Reason:
    """Send the stream, to its end or to an error event. Before the first write errors are raised instead."""
    try:
        if reply.is_early:
            async with kept_alive(sse, reply.streams, every_s=early_comment_s):
                await _send_tokens(reply, sse)
        else:
            await _send_tokens(reply, sse)
    except Refused as refused:
        if not sse.started:
            raise
        failure = refused
    except (ClientGone, ClientTooSlow):
        raise
    except Exception as error:
        if not sse.started:
            raise
        reply.record.failed(error)
        failure = internal_error()
    else:
        return Ending.COMPLETED
    await sse.write(b"data: " + error_body(failure) + b"\n\n")
    return failure.reason


async def _send_tokens(reply: Reply[Body], sse: SseResponse) -> None:
    """One write for what came in one iteration, of however many choices."""
    reply_events = ReplyEvents(reply)
    if len(reply.choices) == 1:
        stream_at_once(reply.choices[0], reply.record, reply_events.writers[0], sse)
    async with reading(reply.streams) as fan_in:
        while fan_in.is_open:
            arrived = await fan_in.next()
            events = await reply_events.of(arrived)
            for index, _ in arrived:
                if reply.choices[index].has_ended:
                    fan_in.leave(index)
            if not fan_in.is_open:
                events += reply_events.closing()
            if events:
                await sse.write(events)
            check_failures(arrived)


def _error(refused: Refused, record: RequestRecord) -> web.Response:
    response = error_response(refused)
    if record.class_name is not None:
        response.headers[CLASS_HEADER] = record.class_name
    return response
