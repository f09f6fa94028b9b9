"""The path of a generation request, the same for both endpoints.

Body, schema, model, tokenising, the context's bound, the queue: each step may refuse. Then tokens arrive, and become
one answer or a stream. Whatever happens, the request's record is ended once, and a sequence that did not end by itself
is cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import orjson
from aiohttp import web

from gateway.api import API, Api
from gateway.class_table import CLASS_CHOICE_HEADER
from gateway.clock import monotonic_us
from gateway.deadlines import DEADLINE_HEADER, Deadline, header_deadline_ms
from gateway.dispatch import GenerationRequest, Tokens, TokenStream
from gateway.errors import Reason, Refused
from gateway.http_errors import error_body, error_response, internal_error
from gateway.json_body import read_object
from gateway.output import OutputText
from gateway.record import Ending, RequestRecord
from gateway.request_ids import ids_of
from gateway.schema import GenerationBody
from gateway.sse import DONE, ChoiceJson, ChunkWriter, ClientGone, ClientTooSlow, ReplyHead, SseResponse, Usage
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer
from workers.wire import ModelCard

CLASS_HEADER = "x-sluicegate-class"
CLIENT_LEFT_STATUS = 499
"""What logs show, by custom, for a client that left before its answer."""

Body = TypeVar("Body", bound=GenerationBody)


class Endpoint(Protocol[Body]):
    """What differs between the endpoints. ``prompt_param`` names the field that holds the prompt."""

    path: str
    id_prefix: str
    prompt_param: str
    choice: ChoiceJson
    whole_object_name: str

    def parse(self, body: dict[str, Any]) -> Body: ...

    async def encode(
        self, body: Body, card: ModelCard, tokenizer: ChatTokenizer, pool: TokenizerPool
    ) -> tuple[int, ...]:
        """The prompt's ids. Raises ``Refused`` when the prompt cannot be encoded."""
        ...

    def whole(self, text: str, finish: str) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started(Generic[Body]):
    """A request whose sequence is in the queue or running."""

    endpoint: Endpoint[Body]
    body: Body
    head: ReplyHead
    headers: dict[str, str]
    stream: TokenStream
    output: OutputText
    record: RequestRecord
    prompt_tokens: int

    def take(self, item: Tokens) -> str:
        """The text of an item, accounted for. Raises ``Refused`` when the sequence failed."""
        if item.token_ids:
            self.record.tokens_arrived()
        text = self.output.take(item)
        self.record.completion_tokens = self.output.num_tokens
        return text

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.output.num_tokens)


async def answer(request: web.Request, endpoint: Endpoint[Body]) -> web.StreamResponse:
    """Handle a request to ``endpoint``."""
    api = request.app[API]
    ids = ids_of(request)
    deadline = Deadline(monotonic_us)
    record = RequestRecord(api.metrics, endpoint=endpoint.path, request_id=ids.own, client_request_id=ids.client)
    try:
        async with deadline.held():
            started = await _start(api, request, endpoint, record, deadline)
        record.is_queued = True
        try:
            if started.body.stream:
                return await _answer_stream(started, request, api)
            return await _answer_whole(started)
        finally:
            if started.output.finish is not None:
                started.stream.complete()
            else:
                started.stream.cancel("the answer was given up")
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


async def _start(
    api: Api, request: web.Request, endpoint: Endpoint[Body], record: RequestRecord, deadline: Deadline
) -> _Started[Body]:
    """Check the request, tokenise it, and put it into the queue."""
    settings = api.settings
    deadline.within_ms(header_deadline_ms(request.headers.getall(DEADLINE_HEADER, ())))
    fields = await read_object(request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_read_s)
    body = endpoint.parse(fields)
    body.check()
    cls = api.classes.choose(
        names=request.headers.getall(CLASS_CHOICE_HEADER, ()), priority=body.priority, service_tier=body.service_tier
    )
    record.class_name = cls.name
    deadline.within_us(cls.default_deadline_us)
    deadline.within_ms(body.deadline_ms)
    card = api.model(body.model)
    record.model = card.name
    tokenizer = await api.tokenizers.get(card.tokenizer_digest)
    prompt_ids = await endpoint.encode(body, card, tokenizer, api.tokenizers)
    record.prompt_tokens = len(prompt_ids)
    request_id = ids_of(request).own
    stream = await api.dispatcher.submit(
        GenerationRequest(
            request_id=request_id,
            model=card.name,
            class_name=cls.name,
            prompt_ids=prompt_ids,
            max_tokens=_output_bound(body, card, len(prompt_ids), endpoint.prompt_param),
            sampling=body.sampling(fresh_seed=secrets.randbits(63)),
            deadline_us=deadline.at_us,
        )
    )
    return _Started(
        endpoint=endpoint,
        body=body,
        head=ReplyHead(
            reply_id=f"{endpoint.id_prefix}-{request_id}",
            created=int(time.time()),
            model=card.name,
            service_tier=cls.service_tier,
        ),
        headers={CLASS_HEADER: cls.name},
        stream=stream,
        output=OutputText(tokenizer.detokenizer(prompt_ids), body.stop),
        record=record,
        prompt_tokens=len(prompt_ids),
    )


def _output_bound(body: GenerationBody, card: ModelCard, prompt_tokens: int, prompt_param: str) -> int:
    """The most tokens to generate: what the client asks for, else all that fits. Refuses what does not fit."""
    room = card.context_length - prompt_tokens
    wanted = 1 if body.output_limit is None else body.output_limit
    if wanted > room:
        message = (
            f"The context has {card.context_length} tokens; the prompt has {prompt_tokens}, and {wanted} are to come."
        )
        param = prompt_param if room < 1 else "max_tokens"
        raise Refused(Reason.CONTEXT_LENGTH_EXCEEDED, message, param=param)
    return room if body.output_limit is None else body.output_limit


async def _answer_whole(started: _Started[Body]) -> web.Response:
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


async def _answer_stream(started: _Started[Body], request: web.Request, api: Api) -> web.StreamResponse:
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


async def _send(started: _Started[Body], sse: SseResponse) -> Ending | Reason:
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


async def _send_tokens(started: _Started[Body], sse: SseResponse) -> None:
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
    return Refused(item.error or Reason.INTERNAL_ERROR, item.message or "The answer could not be completed.")


def _error(refused: Refused, record: RequestRecord) -> web.Response:
    response = error_response(refused)
    if record.class_name is not None:
        response.headers[CLASS_HEADER] = record.class_name
    return response
