"""Two gateways over one Redis and two workers, where something happens to the first at a chosen point of an act.

The first gateway reaches Redis through a tap that strikes: it cuts the connection, or kills the gateway on the spot.
What the second one's clients see is what the tests are about.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio

from admission.redis_client import connect
from gateway.redis_server import RedisServer
from tests.system.cluster import script
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
    """The first gateway is ``struck``; what happens to the other is its consequence."""

    processes: Processes
    redis: redis.asyncio.Redis
    tap: RedisTap

    @property
    def struck(self) -> Gateway:
        return self.processes.gateways[0]

    @property
    def other(self) -> Gateway:
        return self.processes.gateways[1]


class Strike:
    """What happens at a point, chosen once the cluster is there: nothing but the cut, or also ``act``."""

    def __init__(self) -> None:
        self.act: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        self.act()


@asynccontextmanager
async def faulty_cluster(
    folder: Path, server: RedisServer, points: Iterable[Point], *, kills: bool
) -> AsyncIterator[FaultyCluster]:
    """A cluster that is struck at ``points``."""
    async with AsyncExitStack() as stack:
        strike = Strike()
        tap = RedisTap(socket=folder / "tap.sock", redis_socket=server.socket, points=points, strike=strike)
        await stack.enter_async_context(tap.running())
        processes = await stack.enter_async_context(
            start_apart(
                folder,
                redis_urls=(tap.url, server.url),
                fake_worker=WORKER,
                flags=("--queue-requests", str(QUEUE)),
            )
        )
        client = connect(server.url)
        stack.push_async_callback(client.aclose)
        if kills:
            strike.act = processes.gateways[0].kill
        yield FaultyCluster(processes=processes, redis=client, tap=tap)


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
