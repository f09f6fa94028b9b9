import asyncio
import json
import socket

import pytest
from structlog.testing import capture_logs

from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL
from tests.gateway.raw_http import connection, exchange, post
from tests.support import wait_until

PATH = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "Hi"}).encode()
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def error_code(answer: bytes) -> str:
    """The ``code`` of an error answer, its shape checked."""
    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    ],
)
async def test_malformed_http_gets_an_error_body_and_the_connection_closes(gateway: Gateway, data: bytes) -> None:
    """Also what smuggles requests: two lengths in one message."""
    with capture_logs() as logs:
        answer = await exchange(gateway.port, data)
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert error_code(answer) == "invalid_value"
    assert all("exc_info" not in line for line in logs)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: a\r\n" % index for index in range(200)) + b"\r\n",
    ],
)
async def test_heads_over_the_limit_are_a_431(gateway: Gateway, data: bytes) -> None:
    """Headers are memory before any key was checked."""
    answer = await exchange(gateway.port, data)
    assert b" 431 " in answer.split(b"\r\n")[0]
    assert error_code(answer) == "headers_too_large"


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
