"""Between a gateway and Redis: a Unix socket that sees every command and reply whole, and can strike at any of them.

A *point* is the n-th time that an act passes on one side: as a command, which then never arrives, or as a reply, which
has been made and then never arrives. At a point the connection is cut, or whatever the test puts in place of that.
An *exchange* is a claim whose reply names a victim; as a command it is a claim like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from admission.keys import QueueKeys
from admission.queue import QueueBounds
from admission.redis_client import connect
from admission.scripts import NUMBERED, QueueScripts
from tests.redis_between import Pass, between

EXCHANGE = "exchange"
_VICTIM = -1  # a row of a claim ends with its victim
_GIVING = ("claim", "collect")


class Side(StrEnum):
    COMMAND = "command"
    REPLY = "reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The ``number``-th time, from 1, that ``act`` passes on ``side``."""

    act: str
    side: Side
    number: int


class RedisTap:
    """Strikes at the points that it is armed with, once each; then they stand in ``struck``.

    ``on_reply(act, result)`` sees the result of every act, before anything else is done with it.
    """

    def __init__(
        self,
        *,
        socket: Path,
        redis_socket: Path,
        on_reply: Callable[[str, Any], None] = lambda _act, _result: None,
    ) -> None:
        self.url = f"unix://{socket}"
        self.struck: list[Point] = []
        self._socket = socket
        self._redis_socket = redis_socket
        self._points: set[Point] = set()
        self._strike: Callable[[], None] = lambda: None
        self._on_reply = on_reply
        self._acts = _acts_by_digest()
        self._passed: Counter[tuple[str, Side]] = Counter()

    def arm(self, points: Iterable[Point], *, strike: Callable[[], None] = lambda: None) -> None:
        """Strike at ``points``, counted from now. ``strike`` may do more than cut the connection."""
        self._points, self._strike = set(points), strike
        self._passed.clear()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RedisTap]:
        async with between(self._socket, self._redis_socket, self._new_passes):
            yield self

    def _new_passes(self) -> tuple[Pass, Pass]:
        due: deque[str] = deque()  # acts whose replies have not passed yet
        return partial(self._pass_commands, due), partial(self._pass_replies, due)

    async def _pass_commands(self, due: deque[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame, command = await read_frame(reader)
            act = self._act_of(command)
            self._pass(act, Side.COMMAND)
            due.append(act)
            writer.write(frame)
            await writer.drain()

    async def _pass_replies(self, due: deque[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame, value = await read_frame(reader)
            act = due.popleft()
            result = value[1] if act in NUMBERED and isinstance(value, list) else value
            self._on_reply(act, result)
            if act in _GIVING and isinstance(result, list) and any(row[_VICTIM] for row in result):
                self._pass(EXCHANGE, Side.REPLY)
            self._pass(act, Side.REPLY)
            writer.write(frame)
            await writer.drain()

    def _pass(self, act: str, side: Side) -> None:
        """Count it. Raises ``ConnectionResetError`` at a point: the connection is cut."""
        self._passed[act, side] += 1
        point = Point(act=act, side=side, number=self._passed[act, side])
        if point in self._points:
            self._points.remove(point)
            self.struck.append(point)
            self._strike()
            raise ConnectionResetError(f"struck at {point}")

    def _act_of(self, command: Any) -> str:
        """The queue's act that a command calls, or the command's own name."""
        name = command[0].decode().lower()
        if name == "evalsha":
            return self._acts.get(command[1].decode(), name)
        if name == "eval":
            return self._acts.get(hashlib.sha1(command[1], usedforsecurity=False).hexdigest(), name)
        return str(name)


def _acts_by_digest() -> dict[str, str]:
    client = connect("redis://127.0.0.1:1")  # connects at its first call, which never comes
    scripts = QueueScripts(client, keys=QueueKeys.of("any"), bounds=QueueBounds(max_requests=1))
    return {script.digest: name for name, script in scripts._scripts.items()}


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, Any]:
    """One value of Redis's protocol (RESP 2 or 3): its bytes, and strings in bytes and aggregates as lists.

    Raises ``asyncio.IncompleteReadError`` at the end of the connection.
    """
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    if kind in b"$=!":
        if rest == b"-1":
            return line, None
        data = await reader.readexactly(int(rest) + 2)
        return line + data, data[:-2]
    if kind in b"*~>%":
        frames, values = [line], []
        for _ in range(max(0, int(rest)) * (2 if kind == b"%" else 1)):
            frame, value = await read_frame(reader)
            frames.append(frame)
            values.append(value)
        return b"".join(frames), values
    return line, rest
