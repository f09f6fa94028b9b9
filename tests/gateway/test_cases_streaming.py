"""The cases of areas ``streaming-text`` and ``streaming-protocol`` in their long forms."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import pytest

from gateway.dispatch import SequenceRequest, Tokens
from tests.gateway.conftest import Gateway, Reply, ServeGateway
from tests.gateway.fakes import FakeDispatcher, says, speaks
from tests.gateway.raw_http import connection, post
from tests.gateway.talk import PATHS, body_for, finish_of, scripted, text_of
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text
from tests.support import wait_until

SAMPLE = "děľá 🌶️ 👨‍👩‍👧 今天 สวัสดี"


async def read_by_bytes(gateway: Gateway, path: str, body: object) -> Reply:
    """The answer, read one byte at a time."""
    async with gateway.http.post(path, json=body) as response:
        data = b""
        while byte := await response.content.read(1):
            data += byte
        return Reply(response.status, response.headers, data)


@pytest.mark.parametrize("path", PATHS)
async def test_eight_streams_of_split_characters_are_whole(serve: ServeGateway, path: str) -> None:
    """B01: one byte a token, each stream at another place of the same text, and log-probabilities of all tokens."""
    data = SAMPLE.encode()

    def script(sequence: SequenceRequest) -> Sequence[Tokens]:
        start = int(sequence.sampling.seed)
        return speaks(([token_id] for token_id in ids_of_bytes(data[:start] + data)), finish="length")

    gateway = await serve(FakeDispatcher(script=script))
    starts = [0, 1, 3, 5, 7, 8, 12, 15]
    texts = [(data[:start] + data).decode() for start in starts]
    logprobs = {"logprobs": True} if "chat" in path else {"logprobs": 0}
    bodies = [body_for(path, stream=True, seed=start, **logprobs) for start in starts]
    replies = await asyncio.gather(*(read_by_bytes(gateway, path, body) for body in bodies))
    assert [text_of(reply) for reply in replies] == texts
    for reply, start in zip(replies, starts, strict=True):
        assert b"\\ud" not in reply.body
        assert "\ufffd" not in reply.body.decode()
        assert num_scored(reply) == start + len(data)


def num_scored(reply: Reply) -> int:
    parts = [choice["logprobs"] for chunk in reply.chunks for choice in chunk["choices"] if choice["logprobs"]]
    return sum(len(part["tokens"] if "tokens" in part else part["content"]) for part in parts)


@pytest.mark.parametrize("stream", [False, True])
async def test_two_prompts_that_end_inside_a_character_show_nothing_of_each_other(
    serve: ServeGateway, stream: bool
) -> None:
    """B03: neither of themselves nor of the other."""
    character = "今".encode()
    gateway = await serve(scripted(*speaks([ids_of_bytes(character[2:]), ids_of_text("public")])))
    secrets = [[*ids_of_text(f"secret words {who} "), *ids_of_bytes(character[:2])] for who in ("a", "b")]
    replies = await asyncio.gather(*(gateway.complete(secret, stream=stream) for secret in secrets))
    assert [text_of(reply) for reply in replies] == ["public", "public"]
    assert all(b"secret" not in reply.body for reply in replies)


@pytest.mark.parametrize(
    ("parts", "stops", "text"),
    [
        (["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC"),
        (["Sure.", "\nUser", ":", " next"], ["\nUser:"], "Sure."),
        (["xa", "b", "c", "d"], ["abcd", "bc"], "x"),
        (["an early", " and a later"], ["later", "early"], "an "),
        (["a🌶", "\ufe0f", "b"], ["🌶️b"], "a"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_split_over_tokens_ends_the_text_and_the_sequence(
    serve: ServeGateway, parts: list[str], stops: list[str], text: str, stream: bool
) -> None:
    """B04: nothing of it is on the wire, and its sequence goes on no further."""
    gateway = await serve(scripted(*says(*parts)[:-1], *says(" never shown")[:-1]))
    reply = await gateway.complete(stop=stops, stream=stream)
    assert (text_of(reply), finish_of(reply)) == (text, "stop")
    assert gateway.dispatcher.last.cancels == ["the answer is complete"]
    assert gateway.dispatcher.last.num_taken <= len(parts)


async def test_slow_readers_lose_nothing(serve: ServeGateway) -> None:
    """B06: items may come together, but every token is there once, with its log-probability."""
    words = [f" word{index}" for index in range(200)]
    gateway = await serve(scripted(*says(*words, finish="length")))
    whole = text_of(await gateway.complete())
    num_tokens = sum(len(ids_of_text(word)) for word in words)

    async def read_slowly() -> Reply:
        async with gateway.http.post(PATHS[1], json=body_for(PATHS[1], stream=True, logprobs=1)) as response:
            data = b""
            async for part in response.content.iter_chunked(20_000):
                data += part
                await asyncio.sleep(0.002)
            return Reply(response.status, response.headers, data)

    for reply in await asyncio.gather(*(read_slowly() for _ in range(20))):
        assert text_of(reply) == whole == "".join(words)
        assert finish_of(reply) == "length"
        assert num_scored(reply) == num_tokens


async def test_a_thousand_streams_end_as_streams_end(serve: ServeGateway) -> None:
    """B07: role first, one finish reason for each choice, then the usage, one ``[DONE]``, and nothing behind it."""
    chance = random.Random(7)

    def script(_: SequenceRequest) -> Sequence[Tokens]:
        words = ["word "] * chance.randrange(6)
        return says(*words, *(["END"] if chance.random() < 0.3 else []), finish=chance.choice(["stop", "length"]))

    gateway = await serve(FakeDispatcher(script=script))
    at_once = asyncio.Semaphore(32)

    async def one(index: int) -> Reply:
        path = PATHS[index % 2]
        options = {"include_usage": True} if index % 3 else None
        body = body_for(path, stream=True, stop="END", n=1 + index % 2, stream_options=options)
        async with at_once:
            return await gateway.post(path, body)

    for index, reply in enumerate(await asyncio.gather(*(one(index) for index in range(1000)))):
        chunks = reply.chunks
        with_choice = [chunk for chunk in chunks if chunk["choices"]]
        assert chunks[: len(with_choice)] == with_choice
        assert len(chunks) - len(with_choice) == (1 if index % 3 else 0)
        choices = [choice for chunk in with_choice for choice in chunk["choices"]]
        ended = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
        assert sorted(ended) == list(range(1 + index % 2))
        if index % 2 == 0:
            assert choices[0]["delta"]["role"] == "assistant"
    assert gateway.outcome("completed") == 1000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [{"include_usage": False}, {}, None])
async def test_without_being_asked_no_chunk_lacks_a_choice(gateway: Gateway, path: str, options: object) -> None:
    """B09: naive clients read ``chunk.choices[0]`` of every chunk."""
    reply = await gateway.post(path, body_for(path, stream=True, n=2, stream_options=options))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in reply.chunks)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stop", ["wor", None])
async def test_a_stream_tells_the_usage_of_the_whole_answer(gateway: Gateway, path: str, stop: str | None) -> None:
    """B09: also when a stop string ended it."""
    usage = (await gateway.post(path, body_for(path, stop=stop, n=2))).json["usage"]
    options = {"include_usage": True}
    chunks = (await gateway.post(path, body_for(path, stop=stop, n=2, stream=True, stream_options=options))).chunks
    assert chunks[-1]["usage"] == usage


async def test_tokens_arrive_one_by_one_through_a_proxy(serve: ServeGateway) -> None:
    """B11: nothing between model and client collects them, whatever the client says it could decompress."""
    gateway = await serve(FakeDispatcher(script=lambda _: []))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
        target.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with connection(gateway.port) as (behind, before):
            await asyncio.gather(copy(reader, before), copy(behind, writer))

    proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with proxy, connection(port) as (reader, writer), asyncio.timeout(10):
        body = json.dumps(body_for(PATHS[0], stream=True)).encode()
        writer.write(post(PATHS[0], body, extra="Accept-Encoding: gzip\r\n"))
        await wait_until(lambda: bool(gateway.dispatcher.streams), "submitted")
        for index in range(64):
            gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text(f"<{index}>")))
            # The next one is made when this one is here.
            seen = await reader.readuntil(f'"<{index}>"'.encode())
            if index == 0:
                head = seen.lower()
                for header in (b"text/event-stream", b"cache-control: no-cache", b"x-accel-buffering: no"):
                    assert header in head
                assert b"content-encoding" not in head
        gateway.dispatcher.last.put(Tokens(token_ids=(), finish="length"))
        await reader.readuntil(b"[DONE]")
