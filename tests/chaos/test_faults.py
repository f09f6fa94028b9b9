"""Connections to Redis cut again and again, and gateways killed at every point of every act, that do not come back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.redis_server import RedisServer
from tests.documented_keys import wait_for_rest
from tests.support import wait_until
from tests.system.faults import POINTS, check_others, faulty_cluster, shots_at
from tests.system.load import fire
from tests.system.redis_tap import EXCHANGE, Point, Side

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TAKEN_OVER_WITHIN_S = 60.0
"""A driver is silent for 10 s until it is forgotten, a relay is given up after 10 s, a lease runs out after 15 s, and
 an origin waits for 35 beats until it gives up what a driver of another gateway may still run."""


@pytest.mark.parametrize("seed", range(5))
async def test_many_cut_connections_lose_and_double_nothing(own_redis: RedisServer, run_dir: Path, seed: int) -> None:
    """Several at every point, so that faults also meet what earlier ones have left."""
    chance = random.Random(seed)
    points = {Point(act=act, side=side, number=chance.randint(2, 60)) for act, side in POINTS for _ in range(4)}
    async with faulty_cluster(run_dir, own_redis, points, kills=False) as cluster:
        outcomes = await fire(shots_at(cluster.processes.gateways, number=600, within_s=6.0, seed=seed))
        print(seed, len(cluster.tap.struck), dict(check_others(cluster, outcomes)))
        assert len(cluster.tap.struck) >= len(points) / 2
        assert check_others(cluster, outcomes).keys() <= {"served", "queue_full", "shed"}
        await wait_until(cluster.processes.is_idle, "everything is given back")
        await wait_for_rest(cluster.redis)


@pytest.mark.parametrize(("act", "side"), POINTS)
async def test_a_gateway_killed_at_any_point_is_replaced_by_the_other(
    own_redis: RedisServer, run_dir: Path, act: str, side: Side
) -> None:
    """Nobody starts it again: its worker is taken over, and what it held is given back or ends with an error."""
    number = 1 if act == EXCHANGE else random.Random(f"{act} {side}").randint(3, 9)
    async with faulty_cluster(run_dir, own_redis, [Point(act=act, side=side, number=number)], kills=True) as cluster:
        firing = asyncio.create_task(fire(shots_at(cluster.processes.gateways, number=400, within_s=4.0, seed=number)))
        await wait_until(lambda: bool(cluster.tap.struck), "the gateway is killed", timeout_s=30)
        outcomes = await firing
        print(act, side, number, dict(check_others(cluster, outcomes)), f"{max(o.end_s for o in outcomes):.1f} s")
        await wait_until(cluster.processes.is_idle, "everything is given back", timeout_s=TAKEN_OVER_WITHIN_S)

        await wait_for_rest(cluster.redis, TAKEN_OVER_WITHIN_S)

        async def drives_both() -> bool:
            holders = [await cluster.redis.get(f"sg:worker:{worker}") for worker in cluster.processes.workers]
            return holders == [cluster.other.name.encode()] * len(holders)

        await wait_until(drives_both, "the other drives both workers", timeout_s=TAKEN_OVER_WITHIN_S)
        after = await fire(shots_at([cluster.other], number=100, within_s=2.0, seed=number))
        assert all(outcome.is_served or outcome.is_refused for outcome in after)
