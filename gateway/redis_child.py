"""The embedded Redis as one of the children that `sluicegate up` keeps running."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from gateway.process import CannotStart
from gateway.redis_server import RedisServer, RedisServerError


class RedisChild:
    """A ``RedisServer`` that answers. It writes to a log file in the run directory, so it has no lines of its own."""

    last_line = ""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    @classmethod
    async def start(cls, run_dir: Path) -> RedisChild:
        """Start it and wait until it answers. Raises ``CannotStart``."""
        server = RedisServer(run_dir)
        try:
            await server.start()
        except RedisServerError as error:
            raise CannotStart(str(error)) from error
        return cls(server)

    @staticmethod
    def url(run_dir: Path) -> str:
        return RedisServer(run_dir).url

    async def wait(self) -> int:
        return await self._server.wait()

    async def stop(self) -> None:
        await self._server.stop()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._server.pid, signal.SIGKILL)
