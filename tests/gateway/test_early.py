"""Streams that begin before their first token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai
import pytest

from gateway.app import HttpSettings
from gateway.dispatch import Place, Tokens
from gateway.early import EARLY_HEADER, comment_on, wants_early
from gateway.errors import Reason, Refused
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher, FakeStream, says
from tests.gateway.front_door import door, posted
from tests.gateway.raw_http import connection, post
from tests.gateway.small_cluster import request, sequence
from tests.gateway.talk import PATHS, body_for, scripted
from tests.gateway.tiny_tokenizer import ids_of_text
from tests.support import wait_until

EARLY = f"{EARLY_HEADER}: true\r\n"
BODY = json.dumps({"model": MODEL, "prompt": "Hi", "stream": True}).encode()


def waiting(*places: Place | None) -> list[FakeStream]:
    return [FakeStream(request(), sequence(), place=place) for place in places]


@pytest.mark.parametrize(
    ("places", "comment"),
    [
        ([None], b": alive\n\n"),
        ([Place(num_ahead=0, left_s=None)], b": queue position 1\n\n"),
        ([Place(num_ahead=11, left_s=8.4)], b": queue position 12, about 8 s\n\n"),
        ([Place(num_ahead=3, left_s=0.01)], b": queue position 4, about 1 s\n\n"),
        ([Place(num_ahead=3, left_s=None), Place(num_ahead=2, left_s=None)], b": queue position 3\n\n"),
        ([Place(num_ahead=3, left_s=None), None], b": alive\n\n"),
    ],
)
def test_a_comment_says_what_is_known(places: list[Place | None], comment: bytes) -> None:
    """Nothing is promised that nobody knows; a request with a choice that has begun waits no more."""
    assert comment_on(waiting(*places)) == comment


@pytest.mark.parametrize("values", [("",), ("maybe",), ("true", "true"), ("1",), ("True",)])
def test_a_header_that_is_no_answer_is_refused(values: tuple[str, ...]) -> None:
    """Ignored, a client would wait for a sign that never comes."""
    with pytest.raises(Refused) as refused:
        wants_early(values, stream=True)
    assert (refused.value.reason, refused.value.param) == (Reason.INVALID_VALUE, EARLY_HEADER)


def test_only_a_stream_can_begin_early() -> None:
    """An answer that is one JSON object has one status."""
    assert [wants_early(values, stream=True) for values in ((), ("false",), ("true",))] == [False, False, True]
    assert not wants_early(("false",), stream=False)
    with pytest.raises(Refused):
        wants_early(("true",), stream=False)


async def test_the_headers_come_before_the_first_token_and_comments_go_on(serve: ServeGateway) -> None:
    """While it waits, and between tokens: a preempted sequence is silent, too."""
    gateway = await serve(scripted(), early_comment_s=0.02)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(post(PATHS[1], BODY, extra=EARLY))
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b": alive\n\n")
        gateway.dispatcher.last.place = Place(num_ahead=6, left_s=3.0)
        await reader.readuntil(b": queue position 7, about 3 s\n\n")
        gateway.dispatcher.last.place = None
        gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text("Hello")))
        await reader.readuntil(b'"Hello"')
        await reader.readuntil(b": alive\n\n")
        gateway.dispatcher.last.put(*says(" world"))
        assert (await reader.readuntil(b"data: [DONE]\n\n")).count(b'"finish_reason":"stop"') == 1
        assert await reader.readuntil(b"0\r\n\r\n")
    assert gateway.outcome("completed") == 1


async def test_without_the_header_nothing_is_sent_before_the_first_token(serve: ServeGateway) -> None:
    """So that a request that waits can still be refused with a status."""
    gateway = await serve(scripted(), early_comment_s=0.01)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(post(PATHS[1], BODY))
        await wait_until(lambda: bool(gateway.dispatcher.streams), "submitted")
        await asyncio.sleep(0.05)
        gateway.dispatcher.last.put(Tokens(token_ids=(), error=Reason.SHED, message="Displaced."))
        assert b" 429 " in await reader.readline()


async def test_a_refusal_at_the_door_keeps_its_status(serve: ServeGateway) -> None:
    """No rejection arrives as a 200, whoever asks for it."""
    gateway = await serve(FakeDispatcher(refusal=Refused(Reason.QUEUE_FULL, "Full.")))
    for path in PATHS:
        reply = await gateway.post(path, body_for(path, stream=True), headers={EARLY_HEADER: "true"})
        assert (reply.status, reply.error["code"]) == (429, "queue_full")
        reply = await gateway.post(path, body_for(path), headers={EARLY_HEADER: "true"})
        assert (reply.status, reply.error["param"]) == (400, EARLY_HEADER)


async def test_what_goes_wrong_later_is_an_error_event(gateway: Gateway) -> None:
    """As in every stream that has begun, without ``[DONE]``."""
    gateway.dispatcher.script = lambda _: [Tokens(token_ids=(), error=Reason.DEADLINE_EXCEEDED, message="Too late.")]
    reply = await gateway.post(PATHS[0], body_for(PATHS[0], stream=True), headers={EARLY_HEADER: "true"})
    assert reply.status == 200
    comment, event = reply.body.removesuffix(b"\n\n").split(b"\n\n")
    assert comment == b": alive"
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "deadline_exceeded"
    assert gateway.outcome("deadline_exceeded") == 1


async def test_the_official_sdk_passes_over_the_comments(serve: ServeGateway) -> None:
    """It needs nothing but the header; and raises on an error event as ever."""
    gateway = await serve(scripted(), early_comment_s=0.01)

    async def ask() -> list[str]:
        stream = await gateway.sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True, extra_headers={EARLY_HEADER: "true"}
        )
        await asyncio.sleep(0.05)
        gateway.dispatcher.last.put(*says("Hello", " world"))
        return [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert "".join(await ask()) == "Hello world"
    gateway.dispatcher.script = lambda _: [Tokens(token_ids=(), error=Reason.SHED, message="Displaced.")]
    with pytest.raises(openai.APIError, match="Displaced"):
        await ask()


async def test_a_client_that_leaves_early_is_gone(serve: ServeGateway) -> None:
    """Its comments end with it, and so does its sequence."""
    gateway = await serve(scripted(), early_comment_s=0.01)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(post(PATHS[1], BODY, extra=EARLY))
        await reader.readuntil(b": alive\n\n")
    await wait_until(lambda: gateway.outcome("cancelled") == 1, "it is counted")
    assert gateway.dispatcher.last.cancels
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "early comments"]


async def test_the_place_in_a_real_queue_is_told_and_falls(url: str, run_dir: Path) -> None:
    """From what the offer answered, and from the samples of the queue after that."""
    early = posted(stream=True).replace(b"\r\n\r\n", b"\r\n" + EARLY.encode() + b"\r\n", 1)
    often = HttpSettings(early_comment_s=0.05)
    async with door(url, run_dir, http_bounds=often, max_slots=1) as it, asyncio.timeout(20):
        it.worker.gate.clear()
        async with connection(it.port) as (_, first), connection(it.port) as (third, asks_too):
            first.write(posted(max_tokens=200))
            await wait_until(lambda: it.slots == 1, "one runs")
            async with connection(it.port) as (second, asks):
                asks.write(early)
                await second.readuntil(b": queue position 1\n\n")
                asks_too.write(early)
                await third.readuntil(b": queue position 2\n\n")
            await third.readuntil(b": queue position 1\n\n")
            it.worker.gate.set()
            first.transport.abort()
            await third.readuntil(b"data: [DONE]\n\n")
        await it.idle()
