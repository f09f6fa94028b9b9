"""A storm: many times more requests at once than may wait, against two gateways over one Redis.

The waiting queue is watched from three places: a client of Redis that samples it without a pause; the totals that the
scripts return to each gateway with every offer, which miss nothing, since only an offer can raise what waits here; and
the clients, whose answers must add up.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis.asyncio

from admission.keys import QueueKeys
from admission.redis_client import connect
from gateway.redis_server import RedisServer
from tests.system.cluster import script
from tests.system.load import Outcome, Shot, fire
from tests.system.processes import Processes, start_apart
from tests.system.redis_tap import RedisTap

CLASSES = ("interactive", "standard", "batch")
WAITING_REQUESTS = 1  # in the reply to an offer: what waits once it has been answered

WORKER = script(output={"kind": "echo"}, delays={"base_us": 5_000}, slots=4, blocks=4096)


@dataclass(slots=True, kw_only=True)
class Watched:
    """The most that was seen to wait, by who saw it, and how often each looked."""

    sampled: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)
    """The greatest value of each total, by the store's name for it: ``requests``, ``tokens``, ``class:batch``, ..."""

    def see_reply(self, act: str, reply: Any) -> None:
        if act == "offer" and isinstance(reply, list):
            self.told.append(int(reply[WAITING_REQUESTS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StormCluster:
    """Two gateways over one Redis, watched."""

    processes: Processes
    redis: redis.asyncio.Redis
    watched: Watched


@asynccontextmanager
async def storm_cluster(
    folder: Path, server: RedisServer, *, bound: int, worker: str = WORKER, flags: Sequence[str] = ()
) -> AsyncIterator[StormCluster]:
    """Two gateways, two workers like ``worker``, and a queue of ``bound``."""
    watched = Watched()
    async with AsyncExitStack() as stack:
        urls = []
        for number in range(2):
            tap = RedisTap(socket=folder / f"tap{number}.sock", redis_socket=server.socket, on_reply=watched.see_reply)
            urls.append((await stack.enter_async_context(tap.running())).url)
        processes = await stack.enter_async_context(
            start_apart(folder, redis_urls=urls, fake_worker=worker, flags=("--queue-requests", str(bound), *flags))
        )
        client = connect(server.url)
        stack.push_async_callback(client.aclose)
        yield StormCluster(processes=processes, redis=client, watched=watched)


async def storm(cluster: StormCluster, *, shots: int, within_s: float, seed: int) -> list[Outcome]:
    """``shots`` requests of all classes, sent within so many seconds to both gateways, and what came of them."""
    return await fire_watched(cluster, _shots(cluster, shots, within_s, seed))


async def fire_watched(cluster: StormCluster, shots: Sequence[Shot]) -> list[Outcome]:
    """What came of ``shots``; meanwhile the queue is watched."""
    watching = asyncio.create_task(_watch(cluster))
    try:
        return await fire(shots)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _shots(cluster: StormCluster, number: int, within_s: float, seed: int) -> list[Shot]:
    chance = random.Random(seed)
    return [
        Shot(
            name=f"s{seed}r{index:05}",
            url=chance.choice(cluster.processes.gateways).completions,
            at_s=chance.uniform(0, within_s),
            class_name=chance.choice(CLASSES),
            max_tokens=chance.randint(8, 24),
            stream=chance.random() < 0.5,
        )
        for index in range(number)
    ]


async def _watch(cluster: StormCluster) -> None:
    """Sample what waits, without a pause: the total of the bounds, and the lines that it must equal."""
    keys = QueueKeys.of("fake")
    while True:
        async with cluster.redis.pipeline(transaction=True) as sample:
            sample.hgetall(keys.totals)
            sample.zcard(keys.waiting)
            for driver in _drivers(cluster):
                sample.zcard(keys.paused + driver)
            found, *lines = await sample.execute()
        totals = Counter({name.decode(): int(value) for name, value in found.items()})
        assert totals["requests"] == sum(lines), "the total is what lies in the lines"
        cluster.watched.sampled.append(sum(lines))
        cluster.watched.most |= totals


def _drivers(cluster: StormCluster) -> list[str]:
    return [
        f"{gateway.name}/{worker}" for gateway in cluster.processes.gateways for worker in cluster.processes.workers
    ]


def check_answers(outcomes: Sequence[Outcome]) -> Counter[str]:
    """Each request has one whole answer of its own or a clear no; how many of each, by what they were told."""
    for outcome in outcomes:
        assert outcome.is_served or outcome.is_refused, f"neither served nor clearly refused: {outcome}"
    return Counter("served" if outcome.is_served else outcome.code for outcome in outcomes)
