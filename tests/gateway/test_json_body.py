"""Bodies: one JSON object, bounded in bytes, in time and in depth."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL
from tests.gateway.raw_http import connection, exchange, post

PATH = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "Hi"}).encode()


def with_field(name: str, value: str) -> bytes:
    return f'{{"model": "{MODEL}", "prompt": "Hi", "{name}": {value}}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"3",
        b'"x"',
        b"null",
        b"{",
        b'{"model"}',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        with_field("user", '"\\ud800"'),
        with_field("temperature", "NaN"),
        with_field("temperature", "Infinity"),
        with_field("temperature", "-Infinity"),
        with_field("temperature", "1e400"),
        with_field("seed", "1" + "0" * 400),
        BODY + b" x",
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(gateway: Gateway, body: bytes) -> None:
    """A06, A18: some parsers let NaN or lone surrogates through, and something behind them fails with a 500."""
    reply = await gateway.post(PATH, body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_value")
    assert (await gateway.complete()).status == 200


@pytest.mark.parametrize("depth", [100, 1000, 20_000, 200_000])
@pytest.mark.parametrize("shape", ["[", '{"a":'])
@pytest.mark.parametrize("field", [None, "metadata", "unknown"])
async def test_deep_nesting_is_a_400(gateway: Gateway, depth: int, shape: str, field: str | None) -> None:
    """A17: a recursive parser raises RecursionError, or kills the process."""
    nested = shape * depth + "1" + {"[": "]", '{"a":': "}"}[shape] * depth
    body = nested.encode() if field is None else with_field(field, nested)
    reply = await gateway.post(PATH, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


async def test_of_a_repeated_key_the_last_one_counts(gateway: Gateway) -> None:
    """Documented, so that no proxy in front and server behind read different requests."""
    reply = await gateway.post(PATH, f'{{"model": "nope", "model": "{MODEL}", "prompt": "Hi"}}'.encode())
    assert reply.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json; charset=utf-7"},
        {"Content-Type": "application/json; charset=no-such"},
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": ""},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "zstd"},
    ],
)
async def test_other_types_and_encodings_are_a_415(gateway: Gateway, headers: dict[str, str]) -> None:
    """A compressed body of 10 kB can hold 1 GB; nothing is inflated to find out."""
    reply = await gateway.post(PATH, BODY, headers=headers)
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=UTF-8"])
async def test_json_in_utf_8_is_taken(gateway: Gateway, content_type: str) -> None:
    """Named or not."""
    assert (await gateway.post(PATH, BODY, headers={"Content-Type": content_type})).status == 200


@pytest.mark.parametrize(("spare", "status"), [(1, 200), (0, 200), (-1, 413)])
async def test_the_size_limit_is_exact(serve: ServeGateway, spare: int, status: int) -> None:
    """One byte over is over."""
    gateway = await serve(max_body_bytes=len(BODY) + spare)
    reply = await gateway.post(PATH, BODY)
    assert reply.status == status


async def test_a_chunked_body_is_measured_as_it_comes(serve: ServeGateway) -> None:
    """Without a length nothing is declared: only the bytes count, and they stop being read."""
    gateway = await serve(max_body_bytes=1000)
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        writer.write(b"258\r\n" + b" " * 600 + b"\r\n")
        writer.write(b"258\r\n" + b" " * 600 + b"\r\n")
        assert b" 413 " in await reader.readline()
        await reader.read()


async def test_a_declared_length_over_the_limit_is_refused_unread(gateway: Gateway) -> None:
    """Ten announced gigabytes need not be waited for."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n"
    assert b"body_too_large" in await exchange(gateway.port, head.encode())


async def test_a_body_that_does_not_come_is_a_408_and_the_connection_closes(serve: ServeGateway) -> None:
    """A client that stalls must not hold a connection for ever."""
    gateway = await serve(body_read_s=0.05)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    answer = await exchange(gateway.port, head.encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer
    assert b"x-should-retry: false" in answer
    assert gateway.outcome("request_timeout") == 1


def chunked(*parts: bytes, coding: bytes = b"chunked") -> bytes:
    """A request whose body is these bytes, chunk lines included."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + b"".join(parts)


WHOLE = b"%x\r\n%s\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "parts",
    [
        (b"ZZ\r\n{}\r\n",),
        (b"-1\r\n{}\r\n",),
        (b"0x2\r\n{}\r\n",),
        (b"2\n{}\n0\n\n",),
        (b"2\r\n{}0\r\n\r\n",),
        (b"2;a\nb\r\n{}\r\n0\r\n\r\n",),
        (b"f" * 18 + b"\r\n",),
    ],
)
async def test_malformed_chunks_are_a_400(gateway: Gateway, parts: tuple[bytes, ...]) -> None:
    """The head was fine, so the handler may already be reading."""
    answer = await exchange(gateway.port, chunked(*parts))
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b'"code":"invalid_value"' in answer


@pytest.mark.parametrize(
    "parts",
    [
        (WHOLE, b"0\r\n\r\n"),
        (WHOLE.replace(b"\r\n", b";name=value\r\n", 1), b"0\r\nX-Trailer: 1\r\n\r\n"),
        (*(b"1\r\n%c\r\n" % byte for byte in BODY), b"0\r\n\r\n"),
    ],
    ids=["whole", "extensions and trailers", "byte by byte"],
)
async def test_a_chunked_body_is_taken(gateway: Gateway, parts: tuple[bytes, ...]) -> None:
    """Clients that make their body as they send it know no length."""
    assert (await exchange(gateway.port, chunked(*parts))).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_compressed_transfer_is_a_415(gateway: Gateway) -> None:
    """The same bomb in the other header; its bytes would be taken for JSON as they are."""
    answer = await exchange(gateway.port, chunked(WHOLE, b"0\r\n\r\n", coding=b"gzip, chunked"))
    assert answer.startswith(b"HTTP/1.1 415 ")


async def test_the_second_of_two_encodings_counts_too(gateway: Gateway) -> None:
    """Two headers of one name are one list."""
    extra = "Content-Encoding: identity\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
    assert (await exchange(gateway.port, post(PATH, BODY, extra=extra))).startswith(b"HTTP/1.1 415 ")


async def test_expect_100_continue_is_honoured(gateway: Gateway) -> None:
    """The go-ahead that curl waits for with larger bodies."""
    async with connection(gateway.port) as (reader, writer), asyncio.timeout(5):
        request = post(PATH, BODY, extra="Expect: 100-continue\r\n")
        writer.write(request[: -len(BODY)])
        assert b"100 Continue" in await reader.readline()
        writer.write(BODY)
        await reader.readline()
        assert b" 200 " in await reader.readline()
