"""A Unix socket between clients and Redis, for tests that do something to what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

Pass = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
"""Passes on what comes from the one to the other, until it raises ``ConnectionError``: then the connection is cut."""


@asynccontextmanager
async def between(socket: Path, redis_socket: Path, new_passes: Callable[[], tuple[Pass, Pass]]) -> AsyncIterator[None]:
    """Listen on ``socket`` in the block. ``new_passes`` makes, for each connection, who passes commands and replies."""
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await pass_on(reader, writer)
        except* (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            connections.discard(task)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_unix_connection(redis_socket)
        try:
            pass_commands, pass_replies = new_passes()
            async with asyncio.TaskGroup() as group:
                group.create_task(pass_commands(reader, redis_writer))
                group.create_task(pass_replies(redis_reader, writer))
        finally:
            redis_writer.transport.abort()

    server = await asyncio.start_unix_server(accept, socket)
    try:
        yield
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
