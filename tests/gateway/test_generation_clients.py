"""Clients that leave, and clients that read slowly."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Callable

import pytest
from aiohttp import ClientPayloadError
from structlog.testing import capture_logs

from gateway.dispatch import Tokens
from tests.gateway.conftest import Gateway, Reply, ServeGateway
from tests.gateway.fakes import FakeDispatcher, says
from tests.gateway.raw_http import connection, post
from tests.gateway.talk import PATHS, body_for, scripted, text_of
from tests.gateway.tiny_tokenizer import ids_of_text
from tests.support import wait_until


def leave_with_reset(writer: asyncio.StreamWriter) -> None:
    peer = writer.transport.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def leave_with_close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def leave_by_half(writer: asyncio.StreamWriter) -> None:
    """The sending side only: a client that says it will send no more counts as gone."""
    writer.write_eof()


@pytest.mark.parametrize("leave", [leave_with_reset, leave_with_close, leave_by_half])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_sequence(
    serve: ServeGateway, leave: Callable[[asyncio.StreamWriter], None], stream: bool
) -> None:
    """D11: also one that never gets a byte: nothing is generated for nobody. And it is no error of ours."""
    gateway = await serve(scripted(Tokens(token_ids=ids_of_text("Some"))))
    with capture_logs() as logs:
        async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
            writer.write(post("/v1/completions", json.dumps(body_for("", stream=stream)).encode()))
            if stream:
                await reader.readuntil(b'"Some"')
            await wait_until(lambda: bool(gateway.dispatcher.streams), "submitted")
            await wait_until(lambda: gateway.dispatcher.last.num_taken == 1, "the first tokens taken")
            leave(writer)
            await wait_until(lambda: bool(gateway.dispatcher.last.cancels), "the sequence is cancelled")
    await wait_until(lambda: gateway.outcome("cancelled") == 1, "the request is counted")
    assert gateway.num_requests == 1
    assert gateway.num_open == 0
    assert [line["event"] for line in logs] == ["request"]
    assert (logs[0]["outcome"], logs[0]["log_level"]) == ("cancelled", "info")


async def test_a_client_that_leaves_while_it_is_queued_is_counted_once(serve: ServeGateway) -> None:
    """The dispatcher is cancelled in its submit."""
    gateway = await serve(FakeDispatcher(hold_submit=asyncio.Event()))
    async with connection(gateway.port) as (_, writer):
        writer.write(post("/v1/completions", json.dumps(body_for("")).encode()))
        await wait_until(lambda: gateway.num_open == 1, "the request is open")
    await wait_until(lambda: gateway.outcome("cancelled") == 1, "the request is counted")
    assert gateway.num_open == 0


async def test_a_connection_serves_again_after_an_abandoned_one(gateway: Gateway) -> None:
    """Leaving is the client's right; the server stays as it was."""
    gateway.dispatcher.script = lambda _: []
    for _ in range(20):
        async with connection(gateway.port) as (_, writer):
            writer.write(post("/v1/completions", json.dumps(body_for("", stream=True)).encode()))
            await wait_until(lambda: gateway.num_open == 1, "the request is open")
        await wait_until(lambda: gateway.num_open == 0, "the request is over")
    gateway.dispatcher.script = lambda _: says("Hello")
    assert (await gateway.complete()).status == 200
    assert gateway.outcome("cancelled") == 20


async def test_hanging_up_at_any_moment_is_one_quiet_line(
    serve: ServeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """D11: before the headers, between two writes, within one: no traceback, no lost sequence, each counted once."""
    gateway = await serve(FakeDispatcher(script=lambda _: [Tokens(token_ids=ids_of_text("word "))] * 200))
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    moments = random.Random(1)

    async def hang_up(index: int) -> None:
        path = PATHS[index % 2]
        async with connection(gateway.port) as (_, writer):
            writer.write(post(path, json.dumps(body_for(path, stream=index % 3 > 0)).encode()))
            await asyncio.sleep(moments.random() * 0.03)
            if index % 4 == 0:
                leave_with_reset(writer)

    with capture_logs() as logs:
        for _ in range(8):
            await asyncio.gather(*(hang_up(index) for index in range(25)))
        await wait_until(lambda: gateway.num_open == 0, "all requests are over")
    assert gateway.num_requests == gateway.outcome("cancelled") == len(logs)
    assert {line["event"] for line in logs} == {"request"}
    assert (faults, caplog.records) == ([], [])
    assert all(stream.cancels for stream in gateway.dispatcher.streams)


async def test_a_client_that_takes_nothing_is_cut_and_holds_little(serve: ServeGateway) -> None:
    """Its tokens wait in the transport's buffer up to a bound, then it has a stated time."""
    piece = Tokens(token_ids=ids_of_text("x" * 1000))
    gateway = await serve(scripted(*[piece] * 20_000), slow_client_s=0.1)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(10):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post("/v1/completions", json.dumps(body_for("", stream=True)).encode()))
        await wait_until(lambda: gateway.outcome("slow_client") == 1, "the slow client is cut", timeout_s=8)
        await wait_until(lambda: not gateway.transports(), "the connection and its buffer are gone")
    assert gateway.dispatcher.last.num_taken < 20_000
    assert gateway.dispatcher.last.cancels == ["the answer was given up"]
    assert gateway.num_requests == 1


async def test_a_client_that_is_only_slow_gets_everything(serve: ServeGateway) -> None:
    """Waiting for it loses nothing and repeats nothing."""
    words = [f"word{index} " * 20 for index in range(300)]
    gateway = await serve(scripted(*says(*words)))
    async with gateway.http.post("/v1/completions", json=body_for("", stream=True)) as response:
        body = b""
        async for part in response.content.iter_chunked(50_000):
            body += part
            await asyncio.sleep(0.001)
    assert text_of(Reply(200, response.headers, body)) == "".join(words)


async def test_a_cut_stream_does_not_look_whole(serve: ServeGateway) -> None:
    """The HTTP message itself is incomplete."""
    gateway = await serve(scripted(Tokens(token_ids=ids_of_text("Some"))))
    async with gateway.http.post("/v1/completions", json=body_for("", stream=True)) as response:
        await response.content.readuntil(b'"Some"')
        for transport in gateway.transports():
            transport.abort()
        with pytest.raises((ClientPayloadError, ConnectionError)):
            await response.read()
