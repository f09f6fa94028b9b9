"""What a gateway costs, with everything that it does. Prints figures, asserts nothing about time.

Run: ``python -m tests.bench.gateway [uvloop] [asyncio]``: on which event loops, the gateway's own when none is named.

One real gateway process serves a scripted worker (no torch) over a Redis of its own, and clients in another process
read its streams. Beside it, in the same run and with the same clients, a bare aiohttp handler writes the same events
with the same number of writes at the same pace.

* *paced*: iterations of some 20 ms. CPU per token is that of the serving process over some seconds in which streams
  run and none begins or ends. The first token of a request that comes while all others run is *late* by how much it
  comes after the iteration that could have brought it.
* *as fast as it can*: a worker that takes no time of its own. CPU per request is that of short answers, and has
  everything in it from the connection's first byte to its last.

Figures are medians over rounds in which both take turns. Events are counted: a stream that lags puts several tokens
into one, so that tokens never cost more than is said.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import aiohttp

from tests.bench.serving.client import Crowd
from tests.bench.serving.servers import Serving, cpu_s, start_bare, start_gateway

STREAMS = (1, 64, 512)
ITERATION_US = 20_000
SETTLE_S = 0.5
WINDOW_S = 3.0
ROUNDS = 3
PROBES = 20
HELD_TOKENS = 4000  # more than a round takes: nobody ends by himself
CHURN_S = 3.0
SHORT, LONG = 16, 256  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One round of held streams: CPU of the server and of Redis by token, and how late others' first tokens were."""

    us: float
    redis_us: float
    interval_s: float
    late_ms: float


async def main(loops: list[str]) -> None:
    for loop in loops or ["uvloop"]:
        print(f"-- {loop}")
        with tempfile.TemporaryDirectory() as name:
            await paced(Path(name), loop)
        with tempfile.TemporaryDirectory() as name:
            await unpaced(Path(name), loop)


async def paced(folder: Path, loop: str) -> None:
    print(f"{'':>8} {'iteration':>10} {'CPU us per token':>36} {'first token late by, ms':>24}")
    cpu, late = f"{'gateway':>9} {'bare':>8} {'ratio':>8} {'Redis':>8}", f"{'gateway':>16} {'bare':>7}"
    print(f"{'streams':>8} {'ms':>10} {cpu} {late}")
    async with start_gateway(folder, loop=loop, iteration_us=ITERATION_US) as serving:
        events = await _events_of_one(serving.port)
        for streams in STREAMS:
            ours, theirs = await _in_turns(folder, serving, events, loop=loop, streams=streams)
            us, bare_us = median(w.us for w in ours), median(w.us for w in theirs)
            print(
                f"{streams:>8} {1000 * median(w.interval_s for w in ours):>10.1f} {us:>9.1f} {bare_us:>8.1f}"
                f" {us / bare_us:>8.2f} {median(w.redis_us for w in ours):>8.2f}"
                f" {median(w.late_ms for w in ours):>16.1f} {median(w.late_ms for w in theirs):>7.1f}",
                flush=True,
            )


async def _in_turns(
    folder: Path, serving: Serving, events: list[str], *, loop: str, streams: int
) -> tuple[list[Window], list[Window]]:
    ours = [await _hold(serving.port, serving.gateway_pid, streams=streams, redis_pid=serving.redis_pid)]
    async with start_bare(folder, events, loop=loop, interval_s=ours[0].interval_s) as (port, pid):
        theirs = [await _hold(port, pid, streams=streams)]
        for _ in range(ROUNDS - 1):
            ours.append(await _hold(serving.port, serving.gateway_pid, streams=streams, redis_pid=serving.redis_pid))
            theirs.append(await _hold(port, pid, streams=streams))
    return ours, theirs


async def _hold(port: int, pid: int, *, streams: int, redis_pid: int | None = None) -> Window:
    """One round, with clients of its own, which leave at its end."""
    crowd = await Crowd.start()
    try:
        await crowd.hold(port, streams=streams, tokens=HELD_TOKENS)
        await asyncio.sleep(SETTLE_S)
        cpu_before, redis_before = cpu_s(pid), 0.0 if redis_pid is None else cpu_s(redis_pid)
        before, began_s = await crowd.count()
        await asyncio.sleep(WINDOW_S)
        after, ended_s = await crowd.count()
        cpu, redis = cpu_s(pid) - cpu_before, (0.0 if redis_pid is None else cpu_s(redis_pid)) - redis_before
        await crowd.drop(streams=1)
        await asyncio.sleep(SETTLE_S)
        late_s = mean(await crowd.probe(port, times=PROBES))
        await crowd.drop()
        await asyncio.sleep(SETTLE_S)
    finally:
        await crowd.stop()
    tokens = after - before
    interval_s = (ended_s - began_s) * streams / tokens
    if streams == 1:  # alone, a request is due when its own first iteration ends
        late_s -= interval_s
    return Window(us=1e6 * cpu / tokens, redis_us=1e6 * redis / tokens, interval_s=interval_s, late_ms=1000 * late_s)


async def unpaced(folder: Path, loop: str) -> None:
    print(f"\n{'':>8} {f'answers of {SHORT} tokens':>44} {f'answers of {LONG} tokens':>34}")
    print(
        f"{'streams':>8} {'requests/s':>12} {'us/request':>12} {'of it Redis':>12} {'cores':>6}"
        f" {'tokens/s':>14} {'us/token':>12} {'cores':>6}"
    )
    async with start_gateway(folder, loop=loop, iteration_us=0) as serving:
        for streams in STREAMS:
            requests_per_s, us, redis_us, cores = await _churn(serving, streams=streams, tokens=SHORT)
            long_per_s, long_us, _, long_cores = await _churn(serving, streams=streams, tokens=LONG)
            print(
                f"{streams:>8} {requests_per_s:>12.0f} {us:>12.0f} {redis_us:>12.0f} {cores:>6.2f}"
                f" {LONG * long_per_s:>14.0f} {long_us / LONG:>12.1f} {long_cores:>6.2f}",
                flush=True,
            )


async def _churn(serving: Serving, *, streams: int, tokens: int) -> tuple[float, float, float, float]:
    """Requests per second, CPU of the gateway and of Redis by request, and how many cores the gateway kept busy."""
    crowd = await Crowd.start()
    try:
        cpu_before, redis_before = cpu_s(serving.gateway_pid), cpu_s(serving.redis_pid)
        requests, took_s = await crowd.churn(serving.port, streams=streams, tokens=tokens, seconds=CHURN_S)
        cpu, redis = cpu_s(serving.gateway_pid) - cpu_before, cpu_s(serving.redis_pid) - redis_before
    finally:
        await crowd.stop()
    return requests / took_s, 1e6 * cpu / requests, 1e6 * redis / requests, cpu / took_s


async def _events_of_one(port: int) -> list[str]:
    """What one answer consists of, event by event, as the gateway writes it."""
    body = {"model": "fake", "prompt": "Say what the water does. ", "max_tokens": 64, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer,
    ):
        text = await answer.text()
    return [f"{event}\n\n" for event in text.split("\n\n") if event][:64]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
