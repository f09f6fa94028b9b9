"""Two gateways over one Redis and two workers, where something happens to one of them at a chosen point of an act.

Both reach Redis through taps. That of a gateway which drives a worker, and so claims, strikes: it cuts the connection,
or kills the gateway on the spot. What the other one's clients see is what the tests are about.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio

from admission.redis_client import connect
from gateway.redis_server import RedisServer
from tests.system.cluster import metric_of, script
from tests.system.load import Outcome, Shot
from tests.system.processes import Gateway, Processes, start_apart
from tests.system.redis_tap import EXCHANGE, Point, RedisTap, Side

SLOTS = 4
WORKER = script(output={"kind": "echo"}, delays={"base_us": 5_000}, slots=SLOTS, blocks=4096)
QUEUE = 64

POINTS = (
    *((act, side) for act in ("offer", "claim", "collect", "settle") for side in Side),
    (EXCHANGE, Side.REPLY),  # as a command it is a claim
)
"""Where a request may be when something happens to its gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCluster:
    """``tap`` is that of the gateway that is ``struck``; what happens to the other is its consequence."""

    processes: Processes
    redis: redis.asyncio.Redis
    tap: RedisTap
    struck: Gateway
    other: Gateway


@asynccontextmanager
async def faulty_cluster(
    folder: Path, server: RedisServer, points: Iterable[Point], *, kills: bool
) -> AsyncIterator[FaultyCluster]:
    """A cluster that is struck at ``points``."""
    async with AsyncExitStack() as stack:
        taps = [RedisTap(socket=folder / f"tap{number}.sock", redis_socket=server.socket) for number in range(2)]
        for tap in taps:
            await stack.enter_async_context(tap.running())
        processes = await stack.enter_async_context(
            start_apart(
                folder,
                redis_urls=[tap.url for tap in taps],
                fake_worker=WORKER,
                flags=("--queue-requests", str(QUEUE)),
            )
        )
        client = connect(server.url)
        stack.push_async_callback(client.aclose)
        first, second = processes.gateways
        drives = await metric_of([first.address], "sluicegate_slots") > 0
        struck, other, tap = (first, second, taps[0]) if drives else (second, first, taps[1])
        tap.arm(points, strike=struck.kill if kills else lambda: None)
        yield FaultyCluster(processes=processes, redis=client, tap=tap, struck=struck, other=other)


def shots_at(
    gateways: Sequence[Gateway], *, number: int, within_s: float, seed: int, deadline_ms: int | None = None
) -> list[Shot]:
    """Requests that fill slots and queue, and that preempt: two in three are batch, the rest interactive."""
    chance = random.Random(seed)
    return [
        Shot(
            name=f"f{seed}r{index:05}",
            url=gateways[index % len(gateways)].completions,
            at_s=within_s * index / number,
            class_name=chance.choice(("interactive", "batch", "batch")),
            max_tokens=chance.randint(8, 24),
            stream=chance.random() < 0.5,
            deadline_ms=deadline_ms,
        )
        for index in range(number)
    ]


def check_others(cluster: FaultyCluster, outcomes: Iterable[Outcome]) -> Counter[str]:
    """Each request of the other gateway has a whole answer, a clear no, or a typed error; how many of each."""
    told: Counter[str] = Counter()
    for outcome in outcomes_at(cluster.other, outcomes):
        assert outcome.is_served or outcome.is_refused or outcome.is_lost, outcome
        told["served" if outcome.is_served else outcome.code] += 1
    return told


def outcomes_at(gateway: Gateway, outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.shot.url == gateway.completions]
