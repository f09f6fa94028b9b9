"""The ways in which a streaming client can go away, as its gateway may see them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.gateway.raw_http import connection

Leave = Callable[[], Awaitable[None]]
Client = Callable[[int, bytes, int], contextlib.AbstractAsyncContextManager[Leave]]

_PROCESS = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(sys.stdin.buffer.read())
seen = b""
while seen.count(b"data: ") < int(sys.argv[2]):
    seen += client.recv(65536)
print("begun", flush=True)
while client.recv(65536):
    pass
"""


async def read_events(reader: asyncio.StreamReader, number: int) -> None:
    for _ in range(number):
        await reader.readuntil(b"data: ")


def reset(writer: asyncio.StreamWriter) -> None:
    """Drop the connection with a RST."""
    peer = writer.transport.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def by_closing(port: int, request: bytes, num_events: int) -> AsyncIterator[Leave]:
    async with connection(port) as (reader, writer):

        async def leave() -> None:
            writer.close()

        writer.write(request)
        await read_events(reader, num_events)
        yield leave


@contextlib.asynccontextmanager
async def by_reset(port: int, request: bytes, num_events: int) -> AsyncIterator[Leave]:
    async with connection(port) as (reader, writer):

        async def leave() -> None:
            reset(writer)

        writer.write(request)
        await read_events(reader, num_events)
        yield leave


@contextlib.asynccontextmanager
async def by_kill(port: int, request: bytes, num_events: int) -> AsyncIterator[Leave]:
    """A process of its own, killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-E", "-c", _PROCESS, str(port), str(num_events)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def leave() -> None:
        process.kill()
        await process.wait()

    process.stdin.write(request)
    process.stdin.close()
    try:
        await process.stdout.readline()
        yield leave
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def behind_a_proxy(port: int, request: bytes, num_events: int) -> AsyncIterator[Leave]:
    """The client's own connection ends at a proxy, which then gives up its connection to the gateway."""
    piping: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        for task in (
            asyncio.create_task(pipe(reader, upstream_writer)),
            asyncio.create_task(pipe(upstream_reader, writer)),
        ):
            piping.add(task)

    proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        async with by_closing(proxy.sockets[0].getsockname()[1], request, num_events) as leave:
            yield leave
    finally:
        proxy.close()
        for task in piping:
            task.cancel()
        await asyncio.gather(*piping, return_exceptions=True)
