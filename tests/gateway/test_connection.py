"""What one connection may do: malformed, odd, large or slow HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import socket

import pytest
from structlog.testing import capture_logs

from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher, tiny_card
from tests.gateway.raw_http import connection, exchange, post
from tests.gateway.tiny_tokenizer import tokenizer_files
from tests.support import wait_until

PATH = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "Hi"}).encode()
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def error_code(answer: bytes) -> str:
    """The ``code`` of an error answer, its shape checked."""
    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


def head(line: bytes, *headers: bytes) -> bytes:
    """A request's head; a ``Host`` is added unless the first header is empty."""
    lines = headers[1:] if headers[:1] == (b"",) else (b"Host: x", *headers)
    return b"\r\n".join([line, *lines, b"", b""])


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "an unknown version": head(b"GET /livez HTTP/1.2"),
    "an unknown method": head(b"get /livez HTTP/1.1"),
    "tabs for spaces": head(b"GET\t/livez\tHTTP/1.1"),
    "bare line feeds": b"GET /livez HTTP/1.1\nHost: x\n\n",
    "no host": head(b"GET /livez HTTP/1.1", b""),
    "two hosts": head(b"GET /livez HTTP/1.1", b"Host: y"),
    "a header without a colon": head(b"GET /livez HTTP/1.1", b"X y"),
    "a header without a name": head(b"GET /livez HTTP/1.1", b": y"),
    "a space before the colon": head(b"GET /livez HTTP/1.1", b"Transfer-Encoding : chunked"),
    "a folded header": head(b"GET /livez HTTP/1.1", b"X-A: 1\r\n  2"),
    "a zero byte in a header": head(b"GET /livez HTTP/1.1", b"X-A: a\x00b"),
    "a carriage return in a header": head(b"GET /livez HTTP/1.1", b"X-A: a\rb"),
    "a zero byte in the path": head(b"GET /li\x00vez HTTP/1.1"),
    "bytes in the path": head(b"GET /v1/models/\xff HTTP/1.1"),
    "an address that is none": head(b"GET http://[::1/livez HTTP/1.1"),
    "a port that is none": head(b"GET http://x:99999/livez HTTP/1.1"),
    "a body of two lengths": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: 2", b"Content-Length: 3"),
    "a length twice": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: 2", b"Content-Length: 2"),
    "a list of lengths": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: 2, 2"),
    "a negative length": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: -1"),
    "a signed length": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: +1"),
    "a length in hex": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: 0x5"),
    "a length beyond 64 bits": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: " + b"9" * 30),
    "a length and chunks": head(b"POST /v1/completions HTTP/1.1", b"Content-Length: 2", b"Transfer-Encoding: chunked"),
    "chunks twice": head(
        b"POST /v1/completions HTTP/1.1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"
    ),
    "chunks that are not last": head(b"POST /v1/completions HTTP/1.1", b"Transfer-Encoding: chunked, gzip"),
    "a coding that is none": head(b"POST /v1/completions HTTP/1.1", b"Transfer-Encoding: xchunked"),
    "a hidden coding": head(b"POST /v1/completions HTTP/1.1", b"Transfer-Encoding: \x0bchunked"),
    "two types": head(b"POST /v1/completions HTTP/1.1", b"Content-Type: application/json", b"Content-Type: text/plain"),
}
"""What no client of ours sends; also every shape by which one request is smuggled in another."""


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_http_gets_an_error_body_and_the_connection_closes(gateway: Gateway, data: bytes) -> None:
    """H03: whatever follows on such a connection is nobody's request, so it is never run."""
    with capture_logs() as logs:
        answer = await exchange(gateway.port, data + GET.replace(b"/livez", b"/v1/models"))
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/") == 1
    assert error_code(answer) == "invalid_value"
    assert re.search(rb"\r\nx-request-id: [0-9a-f]{32}\r\n", answer)
    assert b"\r\nServer: sluicegate\r\n" in answer
    assert all("exc_info" not in line for line in logs)


@pytest.mark.parametrize("data", [b"GET /livez\r\n\r\n", head(b"GET /livez HTTP/2.0")], ids=["HTTP/0.9", "HTTP/2.0"])
async def test_another_version_of_http_is_refused_in_ours(gateway: Gateway, data: bytes) -> None:
    """An answer that claims a version which nobody speaks here would be a lie; the connection closes."""
    answer = await exchange(gateway.port, data)
    assert answer.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
    assert error_code(answer) == "http_version"


ODD = {
    "an absolute address": head(b"GET http://elsewhere/livez HTTP/1.1"),
    "a query that is no text": head(b"GET /livez?a=%ff HTTP/1.1"),
    "an unknown upgrade": head(b"GET /livez HTTP/1.1", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
    "a WebSocket": head(b"GET /livez HTTP/1.1", b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: x"),
    "a range": head(b"GET /livez HTTP/1.1", b"Range: bytes=9-1", b'If-None-Match: "'),
    "a broken cookie": head(b"GET /livez HTTP/1.1", b'Cookie: =;;"\\'),
    "bytes that are no text": head(b"GET /livez HTTP/1.1", b"X-Request-Id: \xff\xfe"),
    "line feeds first": b"\r\n\r\n" + GET,
    "a body with GET": head(b"GET /livez HTTP/1.1", b"Content-Length: 5") + b"hello",
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
async def test_odd_but_legal_requests_are_answered_and_the_next_one_too(gateway: Gateway, data: bytes) -> None:
    """Such a client is no reason for a fault, nor for losing the place in what it sends."""
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        for request in (data, GET):
            writer.write(request)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_client_that_hopes_for_http_2_is_served_with_http_1(gateway: Gateway) -> None:
    """Java's client asks for the upgrade with each first request, and sends the body along."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        for request in (post(PATH, BODY, extra=upgrade), post(PATH, BODY)):
            writer.write(request)
            assert b'"Hello world"' in await reader.readuntil(b"}}")


async def test_head_answers_like_get_without_a_body(gateway: Gateway) -> None:
    """Some balancers ask for health this way."""
    answer = await exchange(gateway.port, head(b"HEAD /livez HTTP/1.1", b"Connection: close"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 14\r\n" in answer


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: a\r\n" % index for index in range(200)) + b"\r\n",
    ],
)
async def test_heads_with_a_part_over_the_limit_are_a_431(gateway: Gateway, data: bytes) -> None:
    """Headers are memory before any key was checked."""
    answer = await exchange(gateway.port, data)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"\r\nServer: sluicegate\r\n" in answer
    assert error_code(answer) == "headers_too_large"


async def test_a_head_that_is_too_large_as_a_whole_is_a_431(gateway: Gateway) -> None:
    """A hundred headers of the longest length would be more than a megabyte, for each of thousands of connections."""
    headers = b"".join(b"X-%d: %s\r\n" % (index, b"a" * 10_000) for index in range(8))
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + headers)
        answer = await reader.readuntil(b"}}")
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert error_code(answer) == "headers_too_large"
    for header in (b"Server: sluicegate", b"x-should-retry: false", b"x-request-id: ", b"Connection: close", b"Date: "):
        assert b"\r\n" + header in answer


@pytest.mark.parametrize("data", [b"", b"POST /v1/completions HTTP/1.1\r\nHost:"])
async def test_a_head_that_does_not_come_closes_the_connection(serve: ServeGateway, data: bytes) -> None:
    """Thousands of connections that say nothing, or a byte now and then, cost a client nothing."""
    gateway = await serve(header_read_s=0.05)
    assert await exchange(gateway.port, data) == b""


async def test_a_slow_head_on_a_used_connection_closes_it_too(serve: ServeGateway) -> None:
    """The time runs again from the first byte of the next request."""
    gateway = await serve(header_read_s=0.05)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(GET)
        await reader.readuntil(b"}")
        writer.write(b"GET /li")
        assert await reader.read() == b""


async def test_a_request_longer_than_the_heads_time_is_not_cut(serve: ServeGateway) -> None:
    """The deadline is the head's alone."""
    gateway = await serve(header_read_s=0.05)
    gateway.dispatcher.hold_submit = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(gateway.complete())
        await wait_until(lambda: gateway.num_open == 1, "the request is open")
        await asyncio.sleep(0.15)
        gateway.dispatcher.hold_submit.set()
    assert task.result().status == 200


async def test_a_body_that_comes_while_its_request_is_taken_up_is_no_head(serve: ServeGateway) -> None:
    """In that moment nothing waits and nothing runs yet; a timer begun then would cut the answer seconds later."""
    gateway = await serve(header_read_s=0.05)
    gateway.dispatcher.hold_submit = asyncio.Event()
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(GET)
        await reader.readuntil(b"}")
        server = gateway.runner.server
        assert server is not None
        (handler,) = server.connections
        request = post(PATH, BODY)
        handler.data_received(request[: -len(BODY)])
        await asyncio.sleep(0)
        handler.data_received(BODY)
        await wait_until(lambda: gateway.num_open == 1, "the request is open")
        await asyncio.sleep(0.15)
        gateway.dispatcher.hold_submit.set()
        assert b" 200 " in await reader.readline()


async def test_beyond_the_bound_only_health_is_answered(serve: ServeGateway) -> None:
    """A balancer sends a 503 elsewhere; one that cannot ask for health would take a crowded gateway for a dead one."""
    gateway = await serve(max_connections=1)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(GET)
        await reader.readuntil(b"}")
        for path in (b"/livez", b"/readyz"):
            assert (await exchange(gateway.port, head(b"GET " + path + b" HTTP/1.1", b"Connection: close"))).startswith(
                b"HTTP/1.1 200 "
            )
        refused = await exchange(gateway.port, post(PATH, BODY))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert error_code(refused) == "too_many_connections"
        assert b"\r\nRetry-After: " in refused
        assert b"x-sluicegate-reason: too_many_connections\r\n" in refused
        assert gateway.dispatcher.streams == []
        assert gateway.outcome("too_many_connections") == 1
        writer.write(post(PATH, BODY))
        assert b" 200 " in await reader.readline()
    value = gateway.metrics.registry.get_sample_value
    await wait_until(lambda: value("sluicegate_connections_open") == 0, "all are gone")
    assert (await gateway.complete()).status == 200


async def test_beyond_the_spare_connections_nobody_gets_in(
    serve: ServeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds whatever clients do; an established connection is not touched."""
    monkeypatch.setattr("gateway.connection.SPARE_CONNECTIONS", 1)
    gateway = await serve(max_connections=1)
    async with (
        connection(gateway.port) as (reader, writer),
        connection(gateway.port) as (spare, asks),
        asyncio.timeout(5),
    ):
        writer.write(GET)
        await reader.readuntil(b"}")
        asks.write(GET)
        await spare.readuntil(b"}")
        assert await exchange(gateway.port, GET) == b""
        writer.write(GET)
        await reader.readuntil(b"}")


async def test_an_answer_that_nobody_takes_is_cut(serve: ServeGateway) -> None:
    """Not only streams: a whole answer of megabytes waits in memory for its client, too."""
    card = tiny_card(tokenizer_files(), name="x" * 16_000_000)
    gateway = await serve(FakeDispatcher(cards=(card,)), slow_client_s=0.1)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/livez", b"/v1/models"))
        await wait_until(lambda: bool(unsent(gateway)), "more of it waits here than the kernel takes")
        await wait_until(lambda: not gateway.transports(), "the connection and its buffer are gone")


async def test_an_answer_that_is_taken_slowly_is_not_cut(serve: ServeGateway) -> None:
    """A thin line is no crime: only who takes nothing at all is cut."""
    card = tiny_card(tokenizer_files(), name="x" * 16_000_000)
    gateway = await serve(FakeDispatcher(cards=(card,)), slow_client_s=0.2)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(10):
        writer.write(GET.replace(b"/livez", b"/v1/models"))
        await reader.readuntil(b"\r\n\r\n")
        num_bytes = 0
        while num_bytes < 16_000_000:
            num_bytes += len(await reader.readexactly(1_000_000))
            await asyncio.sleep(0.05)


def unsent(gateway: Gateway) -> int:
    return sum(transport.get_write_buffer_size() for transport in gateway.transports())  # type: ignore[attr-defined]


async def test_an_idle_connection_closes_after_the_keep_alive_time(serve: ServeGateway) -> None:
    """Aiohttp's own default is an hour."""
    gateway = await serve(keep_alive_s=0.05)
    answer = await exchange(gateway.port, GET)
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    """Old but legal HTTP."""
    last = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await exchange(gateway.port, GET + post(PATH, BODY) + last)
    assert answer.index(b'"alive"') < answer.index(b'"text_completion"') < answer.index(b'"list"')


async def test_http_1_0_is_served(gateway: Gateway) -> None:
    """Health checks of some balancers still speak it."""
    answer = await exchange(gateway.port, b"GET /livez HTTP/1.0\r\n\r\n")
    assert b" 200 OK" in answer.split(b"\r\n")[0]


async def test_an_unread_body_is_never_taken_for_a_request(gateway: Gateway) -> None:
    """What follows a refused body on the connection must not be run."""
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await exchange(
        gateway.port, post("/nowhere", hidden) + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b'"list"' not in answer


async def test_an_unknown_expectation_is_refused_in_our_shape(gateway: Gateway) -> None:
    """Aiohttp answers it before any handler of ours runs."""
    answer = await exchange(gateway.port, post("/nowhere", BODY, extra="Expect: magic\r\nConnection: close\r\n"))
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert error_code(answer) == "invalid_value"


async def test_dead_peers_are_probed_for(serve: ServeGateway) -> None:
    """A peer without power neither closes nor answers, and the kernel's own patience is two hours."""
    gateway = await serve(peer_timeout_s=40)
    seen: list[tuple[int, ...]] = []
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)

    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(GET)
        await reader.readuntil(b"}")
        for transport in gateway.transports():
            peer = transport.get_extra_info("socket")
            assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            seen.append(tuple(peer.getsockopt(socket.IPPROTO_TCP, option) for option in options))
    assert seen == [(10, 10, 3, 40_000)]


@pytest.mark.parametrize("path", ["/nowhere", PATH])
async def test_a_refused_compressed_body_is_thrown_away_unopened(gateway: Gateway, path: str) -> None:
    """Inflating what nobody reads is a way to fill memory; that this body is no gzip goes unnoticed."""
    refused = post(path, b"not gzip at all", extra="Content-Encoding: gzip\r\n")
    answer = await exchange(gateway.port, refused + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 415 "))
    assert answer.count(b"HTTP/1.1 200 ") == 1
