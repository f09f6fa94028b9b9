"""What is compared with: an aiohttp handler that does nothing but write ready-made events, one for each token.

It keeps time as a worker behind a gateway does: all streams are written to at once, in every iteration, and one that
comes while others run gets its first token with the third iteration from then (two were planned already). Alone it
gets it with the first.

Run: ``python -m tests.bench.serving.bare FILE INTERVAL_S LOOP``; FILE has the events of an answer. It prints its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import cycle, islice
from pathlib import Path

import uvloop
from aiohttp import web

LOOPS = {"uvloop": uvloop.run, "asyncio": asyncio.run}
ITERATIONS_TO_FIRST = 3
DONE = b"data: [DONE]\n\n"


class Iterations:
    """Wakes everybody who waits, every ``interval_s``, until nobody has waited for a whole one."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._end: asyncio.Future[None] | None = None
        self._is_awaited = False

    @property
    def are_going_on(self) -> bool:
        return self._end is not None

    async def next(self) -> None:
        """The end of this iteration. Nobody who waits is ever cancelled: the future is everybody's."""
        if self._end is None:
            self._begin(asyncio.get_running_loop().time())
        self._is_awaited = True
        assert self._end is not None
        await self._end

    def _begin(self, now_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._end, self._is_awaited = loop.create_future(), False
        loop.call_at(now_s + self._interval_s, self._finish, now_s + self._interval_s)

    def _finish(self, now_s: float) -> None:
        ended, was_awaited = self._end, self._is_awaited
        self._end = None
        if was_awaited:
            assert ended is not None
            ended.set_result(None)
            self._begin(now_s)


class Bare:
    """The handler."""

    def __init__(self, events: list[bytes], iterations: Iterations) -> None:
        self._events = events
        self._iterations = iterations

    async def answer(self, request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        for _ in range(ITERATIONS_TO_FIRST if self._iterations.are_going_on else 1):
            await self._iterations.next()
        try:
            await response.prepare(request)
            for event in islice(cycle(self._events), tokens - 1):
                await response.write(event)
                await self._iterations.next()
            await response.write(self._events[-1])
            await response.write(DONE)
        except ConnectionError:
            pass  # the client has left
        return response


async def main(events: list[bytes], interval_s: float) -> None:
    app = web.Application()
    app.router.add_post("/v1/completions", Bare(events, Iterations(interval_s)).answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    recorded = [event.encode() for event in json.loads(Path(sys.argv[1]).read_text())]
    LOOPS[sys.argv[3]](main(recorded, float(sys.argv[2])))
