"""Cases of HTTP itself: clients of every kind, and peers that vanish."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import json
import os
import socket
import struct

import aiohttp
import pytest

from gateway.dispatch import Tokens
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher, says
from tests.gateway.raw_http import connection, exchange, post
from tests.gateway.talk import scripted
from tests.gateway.test_connection import head
from tests.gateway.tiny_tokenizer import ids_of_text
from tests.support import wait_until

PATH = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "Hi"}).encode()
STREAM = json.dumps({"model": MODEL, "prompt": "Hi", "stream": True}).encode()
JSON = {"Content-Type": "application/json"}
SO_ATTACH_FILTER = 26


# --- clients of every kind --------------------------------------------------------------------------------------------


async def test_the_standard_librarys_client_reuses_its_connection(gateway: Gateway) -> None:
    """H08: answers and streams by turns on one connection, after a refusal of a body that nobody read as well."""

    def talk() -> list[int]:
        client = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
        statuses = []
        for path, body in [(PATH, BODY), (PATH, STREAM), ("/nowhere", b"x" * 100_000), (PATH, b"{"), (PATH, STREAM)]:
            client.request("POST", path, body, {"Content-Type": "application/json"})
            response = client.getresponse()
            response.read()
            statuses.append(response.status)
        client.close()
        return statuses

    assert await asyncio.to_thread(talk) == [200, 200, 404, 400, 200]


async def test_curl_is_served(gateway: Gateway) -> None:
    """H08: as people try it first, with a body so large that it asks before it sends."""
    body = json.dumps(
        {"model": MODEL, "prompt": "Hi", "user": "x" * 500, "metadata": {"k": "v" * 500}, "stop": ["y" * 250] * 4}
    )
    command = ["curl", "-sS", "--max-time", "10", f"http://127.0.0.1:{gateway.port}{PATH}", "-H"]
    for extra in ([], ["-H", "Expect: 100-continue"], ["--http1.0"], ["-N"], ["-H", "Transfer-Encoding: chunked"]):
        process = await asyncio.create_subprocess_exec(
            *command, "Content-Type: application/json", "-d", body, *extra, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert json.loads(output)["choices"][0]["text"] == "Hello world", extra


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_an_http_1_0_client_gets_an_answer_that_ends_with_the_connection(gateway: Gateway, body: bytes) -> None:
    """H08: it knows no chunks, so it must be sent none."""
    answer = await exchange(gateway.port, post(PATH, body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    top, text = answer.split(b"\r\n\r\n", 1)
    assert top.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"Transfer-Encoding" not in top
    assert text.startswith((b"{", b"data: {"))
    assert text.endswith((b"}", b"data: [DONE]\n\n"))


async def test_pipelined_generations_are_answered_in_order(serve: ServeGateway) -> None:
    """H08: the first may be the slowest; the last says that it wants no more."""
    gateway = await serve(FakeDispatcher(script=lambda sequence: says(f"<{sequence.max_tokens}>")))
    requests = [
        post(PATH, json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": n, "stream": n % 2 == 0}).encode())
        for n in range(1, 9)
    ]
    answer = await exchange(gateway.port, b"".join(requests) + head(b"GET /livez HTTP/1.1", b"Connection: close"))
    places = [answer.index(f"<{n}>".encode()) for n in range(1, 9)]
    assert places == sorted(places)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 9


async def test_a_flood_of_pipelined_requests_waits_in_the_network(serve: ServeGateway) -> None:
    """H08: a client that asks and asks while it is being answered fills its own line, not this process."""
    gateway = await serve(FakeDispatcher(hold_submit=asyncio.Event()))
    async with connection(gateway.port) as (_, writer):
        for _ in range(200):
            writer.write(post(PATH, BODY + b" " * 100_000))
        await wait_until(lambda: gateway.num_open == 1, "the first is being answered")
        await asyncio.sleep(0.1)
        assert writer.transport.get_write_buffer_size() > 5_000_000
        assert gateway.num_open == 1


async def test_the_end_of_a_client_that_asked_for_too_much_is_noticed(
    serve: ServeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H08: while nothing is read from it, no end is read either, and all would be generated for nobody."""
    monkeypatch.setattr("gateway.connection.HANGUP_EVERY_S", 0.05)
    gateway = await serve(FakeDispatcher(hold_submit=asyncio.Event()))
    async with connection(gateway.port) as (_, writer):
        writer.write(post(PATH, BODY) * 100)
        await wait_until(lambda: gateway.num_open == 1, "the first is being answered")
        await asyncio.sleep(0.2)
        assert gateway.num_open == 1
    await wait_until(lambda: gateway.num_open == 0, "all is given up with the connection")
    assert gateway.outcome("cancelled") == gateway.num_requests == 1


async def test_a_pool_goes_on_after_a_stream_that_was_left(serve: ServeGateway) -> None:
    """H08: the connection of the stream is gone, and nothing of it appears in what follows."""
    gateway = await serve(scripted(*says("Hello", " world")[:-1]))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for _ in range(3):
            async with session.post(f"http://127.0.0.1:{gateway.port}{PATH}", data=STREAM, headers=JSON) as response:
                await response.content.readuntil(b"Hello")
        async with session.get(f"http://127.0.0.1:{gateway.port}/v1/models", headers=JSON) as response:
            assert (await response.json())["object"] == "list"
    await wait_until(lambda: gateway.outcome("cancelled") == 3, "the streams are over")


# --- how a stream reaches its client ----------------------------------------------------------------------------------


async def test_each_token_reaches_the_client_at_once(serve: ServeGateway) -> None:
    """B11: not compressed (which buffers), not collected, and with the headers that keep proxies from doing so."""
    gateway = await serve(scripted())
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(post(PATH, STREAM, extra="Accept-Encoding: gzip, deflate, br\r\n"))
        await wait_until(lambda: bool(gateway.dispatcher.streams), "submitted")
        for word in ("one", "two", "three"):
            gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text(word)))
            received = await reader.readuntil(b'"%s"' % word.encode())
            if word == "one":
                top = received.split(b"\r\n\r\n")[0]
    for line in (b"Content-Type: text/event-stream", b"Cache-Control: no-cache", b"X-Accel-Buffering: no"):
        assert line in top.split(b"\r\n")
    assert b"Content-Encoding" not in top


# --- peers that vanish ------------------------------------------------------------------------------------------------


def lose_power(writer: asyncio.StreamWriter) -> None:
    """From now on its socket drops whatever arrives, unacknowledged, as if its machine had lost power."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # one instruction: keep 0 bytes
    program = struct.pack("HL", 1, ctypes.addressof(drop_all))
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as peer:
        peer.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


async def test_a_vanished_peer_is_found_while_it_waits_and_while_it_streams(serve: ServeGateway) -> None:
    """D13: it neither closes nor answers. Probes find the one that waits, unacknowledged bytes the one that streams."""
    gateway = await serve(scripted(), peer_timeout_s=1)
    async with connection(gateway.port) as (_, queued), connection(gateway.port) as (reader, streaming):
        queued.write(post(PATH, BODY))
        await wait_until(lambda: len(gateway.dispatcher.streams) == 1, "one waits")
        streaming.write(post(PATH, STREAM))
        await wait_until(lambda: len(gateway.dispatcher.streams) == 2, "the other, too")
        gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text("Hello")))
        await reader.readuntil(b"Hello")
        for writer in (queued, streaming):
            lose_power(writer)
        gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text(" world")))
        await wait_until(lambda: gateway.outcome("cancelled") == 2, "both are given up", timeout_s=10)
    assert all(stream.cancels for stream in gateway.dispatcher.streams)
    assert gateway.num_open == 0
