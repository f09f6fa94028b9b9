"""The short cut of tokens to the client: the same answer as by the task, whoever writes which part of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.dispatch import TokenLogprob, Tokens
from gateway.output import OutputText
from tests.gateway.conftest import Gateway, Reply, ServeGateway
from tests.gateway.counted import counted
from tests.gateway.fakes import FakeStream
from tests.gateway.raw_http import connection, post
from tests.gateway.talk import PATHS, body_for, finish_of, scripted, text_of
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text
from tests.support import wait_until

END = Tokens(token_ids=(), finish="stop")


def tokens(text: str) -> Tokens:
    return Tokens(token_ids=ids_of_text(text))


class Answer:
    """An answer whose tokens the test puts, each when the one before is with the client or its task."""

    def __init__(self, gateway: Gateway, stream: FakeStream, reading: asyncio.Task[Reply]) -> None:
        self.stream = stream
        self._gateway = gateway
        self._reading = reading

    async def put(self, *items: Tokens) -> None:
        for item in items:
            await wait_until(lambda: self.stream.is_awaited, "the answer's task waits")
            self.stream.put(item)

    async def read(self) -> Reply:
        return await self._reading


@asynccontextmanager
async def answering(serve: ServeGateway, path: str, **fields: object) -> AsyncIterator[Answer]:
    gateway = await serve(scripted())
    reading = asyncio.create_task(gateway.post(path, body_for(path, stream=True, **fields)))
    await wait_until(lambda: bool(gateway.dispatcher.streams), "the request is accepted")
    yield Answer(gateway, gateway.dispatcher.last, reading)
    assert gateway.num_requests == counted(gateway.metrics.registry, "sluicegate_requests_total") == 1


@pytest.mark.parametrize("path", PATHS)
async def test_all_but_the_first_token_and_the_end_go_straight_to_the_client(serve: ServeGateway, path: str) -> None:
    """No task is woken for them, and nobody can tell."""
    words = [f" word{index}" for index in range(20)]
    async with answering(serve, path, stream_options={"include_usage": True}) as answer:
        await answer.put(*map(tokens, words), END)
        reply = await answer.read()
    assert (text_of(reply), finish_of(reply)) == ("".join(words), "stop")
    assert (answer.stream.num_taken_at_once, answer.stream.num_taken) == (19, 2)
    counts = reply.chunks[-1]["usage"]
    assert counts["completion_tokens"] == sum(len(ids_of_text(word)) for word in words)


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_is_collected_without_its_task(serve: ServeGateway, path: str) -> None:
    """It is woken for the first token and the end of each choice; its counts are those of all tokens."""
    gateway = await serve(scripted())
    asked = asyncio.create_task(gateway.post(path, body_for(path, n=2)))
    await wait_until(lambda: bool(gateway.dispatcher.streams), "the request is accepted")
    for index, stream in enumerate(gateway.dispatcher.streams):
        for item in (*[tokens(f" {index}") for _ in range(5)], END):
            await wait_until(lambda stream=stream: stream.is_awaited, "the answer's task waits")  # type: ignore[misc]
            stream.put(item)
    reply = (await asked).json
    texts = [choice["message"]["content"] if "chat" in path else choice["text"] for choice in reply["choices"]]
    assert texts == [" 0" * 5, " 1" * 5]
    assert reply["usage"]["completion_tokens"] == 10 * len(ids_of_text(" 0"))
    assert [stream.num_taken_at_once for stream in gateway.dispatcher.streams] == [4, 4]


async def test_a_character_may_be_split_between_the_task_and_the_short_cut(serve: ServeGateway) -> None:
    """Both put the text together in the same place."""
    sample = "děľá 🌶️ 今天"
    async with answering(serve, "/v1/completions") as answer:
        await answer.put(*[Tokens(token_ids=(token_id,)) for token_id in ids_of_bytes(sample.encode())], END)
        reply = await answer.read()
    assert text_of(reply) == sample
    assert "\ufffd" not in reply.body.decode()


@pytest.mark.parametrize("fields", [{"stop": "END"}, {"logprobs": 1}])
async def test_what_has_more_to_it_than_tokens_is_left_to_the_task(
    serve: ServeGateway, fields: dict[str, object]
) -> None:
    """A stop string ends the sequence, and log-probabilities may need a thread."""
    one = TokenLogprob(own=-0.5, top=((5, -0.5),))
    logprobs = (one,) if "logprobs" in fields else ()
    async with answering(serve, "/v1/completions", **fields) as answer:
        await answer.put(*[Tokens(token_ids=ids_of_text(char), logprobs=logprobs) for char in "abc"], END)
        reply = await answer.read()
    assert text_of(reply) == "abc"
    assert answer.stream.num_taken_at_once == 0


async def test_a_client_that_falls_behind_is_left_to_the_task(serve: ServeGateway) -> None:
    """The short cut has no patience: the task waits for the client, for its time, and then cuts it."""
    gateway = await serve(scripted(), slow_client_s=0.1)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(10):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post("/v1/completions", json.dumps(body_for("", stream=True)).encode()))
        await wait_until(lambda: bool(gateway.dispatcher.streams), "the request is accepted")
        stream = gateway.dispatcher.last
        answer = Answer(gateway, stream, asyncio.create_task(asyncio.sleep(0)))  # type: ignore[arg-type]
        await answer.put(tokens("a"))
        await wait_until(lambda: stream.is_awaited, "the headers are out")
        piece = tokens("x" * 1000)
        while stream.is_awaited:
            stream.put(piece)
        num_unread = stream.items.qsize()
        assert (num_unread, stream.num_taken_at_once > 0) == (1, True)
        stream.put(piece)
        assert stream.items.qsize() == 2
        await wait_until(lambda: gateway.outcome("slow_client") == 1, "the slow client is cut", timeout_s=8)


async def test_a_fault_in_one_answer_ends_that_answer_alone(
    serve: ServeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes up in the driver's turn, and must neither end the driver nor pass for an answer."""

    def fail(*_: object) -> str:
        raise ValueError("no text")

    monkeypatch.setattr(OutputText, "take_tokens", fail)
    with capture_logs() as logs:
        async with answering(serve, "/v1/completions") as answer:
            await answer.put(tokens("a"), tokens("b"))
            answer.stream.put(RuntimeError("the stream ended"))  # as a stream does that was cancelled
            reply = await answer.read()
    assert reply.events[-1]["error"]["code"] == "internal_error"
    assert "its text could not be shown" in answer.stream.cancels
    assert any(isinstance(line.get("exc_info"), ValueError) for line in logs)
