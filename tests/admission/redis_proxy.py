"""Between a client and Redis: a Unix socket that makes replies late, or loses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.redis_between import between


class RedisProxy:
    """``delay_s`` is added to each reply; with ``loses_replies`` commands arrive and replies do not."""

    def __init__(self, *, socket: Path, redis_socket: Path) -> None:
        self.socket = socket
        self.url = f"unix://{socket}"
        self.delay_s = 0.0
        self.loses_replies = False
        self._redis_socket = redis_socket

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RedisProxy]:
        async with between(self.socket, self._redis_socket, lambda: (self._commands, self._replies)):
            yield self

    async def _commands(self, reader: asyncio.StreamReader, redis_writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            redis_writer.write(data)
            await redis_writer.drain()
        raise ConnectionError("the client is gone")

    async def _replies(self, redis_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await redis_reader.read(65536):
            await asyncio.sleep(self.delay_s)
            if not self.loses_replies:
                writer.write(data)
                await writer.drain()
        raise ConnectionError("Redis is gone")
