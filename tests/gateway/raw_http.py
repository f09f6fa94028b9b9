"""Talking to a gateway byte by byte, as no HTTP library would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, dropped at the end whatever lies in it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def post(path: str, body: bytes, *, extra: str = "") -> bytes:
    """A well-formed request, with ``extra`` header lines."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{extra}\r\n".encode() + body


async def exchange(port: int, data: bytes, *, timeout_s: float = 5.0) -> bytes:
    """Send bytes and read until the server closes."""
    async with connection(port) as (reader, writer), asyncio.timeout(timeout_s):
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
