"""Clients in a process of their own, lean enough that two cores are enough for both ends.

``Crowd`` (in the benchmark's process) sends commands as JSON lines; ``python -m tests.bench.serving.client`` obeys and
answers each with one line. A reader parses nothing: an event ends with an empty line, an answer with the last chunk of
HTTP, and the first bytes bring the first token, since the servers here send no headers before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any, cast

import uvloop

LAST_CHUNK = b"\r\n0\r\n\r\n"
EVENT_END = b"\n\n"
LINE_LIMIT = 1 << 24
ANSWER_WITHIN_S = 120.0
ITERATIONS_TO_FIRST = 3
GROUP = 32  # who come at once
PAUSE_S = (0.05, 0.1)  # between probes: longer than an iteration, and never in step with them


class Crowd:
    """The process of the clients, from outside: each call is one command. Times are seconds."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Crowd:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "tests.bench.serving.client"]
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE_LIMIT))

    async def hold(self, port: int, *, streams: int, tokens: int) -> None:
        """Open so many streams, and return when each has begun."""
        await self._tell("hold", port=port, streams=streams, tokens=tokens)

    async def count(self) -> tuple[int, float]:
        """Events of the held streams until now, and when now is."""
        events, at_s = await self._tell("count")
        return events, at_s

    async def drop(self, *, streams: int | None = None) -> None:
        """Leave so many of the held streams, or all."""
        await self._tell("drop", streams=streams)

    async def probe(self, port: int, *, times: int) -> list[float]:
        """Ask for one token so often, one after the other, at random times: by how much later than due each came.

        When others run it is due with the third iteration from then (two are planned already), which is seen from one
        of the held streams; alone, at once: the time is the whole one.
        """
        return list(await self._tell("probe", port=port, times=times))

    async def churn(self, port: int, *, streams: int, tokens: int, seconds: float) -> tuple[int, float]:
        """So many clients that ask again and again: requests answered whole, and in which time."""
        requests, took_s = await self._tell("churn", port=port, streams=streams, tokens=tokens, seconds=seconds)
        return requests, took_s

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _tell(self, act: str, **arguments: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([act, arguments]).encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_WITHIN_S)
        if not line:
            raise AssertionError(f"the clients have gone while they were to {act}")
        return json.loads(line)


# --- in the clients' process ------------------------------------------------------------------------------------------


class Reader(asyncio.Protocol):
    """One connection. ``begun`` and ``ended`` are of the latest request; ``events`` counts over all."""

    def __init__(self) -> None:
        self.events = 0
        self.times: list[float] | None = None  # of all that comes, once somebody wants to know
        self.begun: asyncio.Future[float]
        self.ended: asyncio.Future[None]
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def ask(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.begun, self.ended = loop.create_future(), loop.create_future()
        self._transport.write(request)

    def leave(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            if not data.startswith(b"HTTP/1.1 200"):
                print(f"the answer of a client began with {data[:80]!r}", file=sys.stderr, flush=True)
                os._exit(1)  # an exception would end with the event loop's log
            self.begun.set_result(time.perf_counter())
        if self.times is not None:
            self.times.append(time.perf_counter())
        self.events += data.count(EVENT_END)
        self._tail = data[-len(LAST_CHUNK) :] if len(data) > len(LAST_CHUNK) else self._tail + data
        if self._tail.endswith(LAST_CHUNK):
            self.ended.set_result(None)


class Clients:
    """What the commands do."""

    def __init__(self) -> None:
        self._held: list[Reader] = []

    async def hold(self, port: int, streams: int, tokens: int) -> None:
        while len(self._held) < streams:
            group = [await _connect(port) for _ in range(min(GROUP, streams - len(self._held)))]
            for reader in group:
                reader.ask(_request(tokens))
            for reader in group:
                await reader.begun
            self._held += group

    async def count(self) -> tuple[int, float]:
        return sum(reader.events for reader in self._held), time.perf_counter()

    async def drop(self, streams: int | None) -> None:
        for _ in range(len(self._held) if streams is None else streams):
            self._held.pop().leave()

    async def probe(self, port: int, times: int) -> list[float]:
        reader, chance, late_s = await _connect(port), random.Random(1), []
        for _ in range(times):
            await asyncio.sleep(chance.uniform(*PAUSE_S))
            iterations: list[float] = []
            if self._held:
                self._held[0].times = iterations
            asked_s = time.perf_counter()
            reader.ask(_request(1))
            begun_s = await reader.begun
            await reader.ended
            if self._held:
                while len(iterations) < ITERATIONS_TO_FIRST:  # noqa: ASYNC110 -- it came before them: soon
                    await asyncio.sleep(0.001)
                asked_s = iterations[ITERATIONS_TO_FIRST - 1]
            late_s.append(begun_s - asked_s)
        reader.leave()
        return late_s

    async def churn(self, port: int, streams: int, tokens: int, seconds: float) -> tuple[int, float]:
        began_s = time.perf_counter()
        readers = [await _connect(port) for _ in range(streams)]
        answered = await asyncio.gather(
            *(
                _ask_until(reader, tokens, began_s + seconds, first_after_s=number / 1000)
                for number, reader in enumerate(readers)
            )
        )
        took_s = time.perf_counter() - began_s
        for reader in readers:
            reader.leave()
        return sum(answered), took_s


async def _ask_until(reader: Reader, tokens: int, end_s: float, *, first_after_s: float) -> int:
    await asyncio.sleep(first_after_s)
    answered = 0
    while time.perf_counter() < end_s:
        reader.ask(_request(tokens))
        await reader.ended
        answered += 1
    return answered


async def _connect(port: int) -> Reader:
    _, reader = await asyncio.get_running_loop().create_connection(Reader, "127.0.0.1", port)
    return reader


def _request(tokens: int) -> bytes:
    fields = {"model": "fake", "prompt": "Say what the water does. ", "max_tokens": tokens, "stream": True}
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


async def main() -> None:
    clients = Clients()
    while line := await asyncio.to_thread(sys.stdin.readline):
        act, arguments = json.loads(line)
        print(json.dumps(await getattr(clients, act)(**arguments)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
