"""A connection to Redis that breaks, or a gateway that is killed, at every point of every act on the queue."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.redis_server import RedisServer
from tests.documented_keys import wait_for_rest
from tests.support import wait_until
from tests.system.cluster import metric_of
from tests.system.faults import POINTS, SLOTS, check_others, faulty_cluster, outcomes_at, shots_at
from tests.system.load import fire
from tests.system.redis_tap import Point, Side

pytestmark = pytest.mark.system

SEED = 4


async def test_a_connection_that_breaks_at_any_point_of_any_act_loses_and_doubles_nothing(
    own_redis: RedisServer, run_dir: Path
) -> None:
    """Popped and never arrived, or offered again and run twice: this is where queues lose and double requests."""
    chance = random.Random(SEED)
    points = [Point(act=act, side=side, number=chance.randint(1, 5)) for act, side in POINTS]
    async with faulty_cluster(run_dir, own_redis, points, kills=False) as cluster:
        gateways = cluster.processes.gateways
        outcomes = await fire(shots_at(gateways, number=240, within_s=2.0, seed=SEED))

        assert sorted(cluster.tap.struck, key=points.index) == points
        for outcome in outcomes_at(cluster.other, outcomes):
            assert outcome.is_served or outcome.is_refused, outcome
        unknown = [o for o in outcomes_at(cluster.struck, outcomes) if not (o.is_served or o.is_refused)]
        assert {(outcome.status, outcome.code) for outcome in unknown} == {(503, "store_unavailable")}
        assert len(unknown) == 2, "those whose offer was cut, before and after it took place"

        await wait_until(cluster.processes.is_idle, "everything is given back")
        await wait_for_rest(cluster.redis)
        computed = await metric_of([gateway.address for gateway in gateways], "sluicegate_output_tokens_total")
        told = sum(len(outcome.text) for outcome in outcomes)
        assert told <= computed <= told + sum(outcome.shot.max_tokens for outcome in unknown)


async def test_a_gateway_that_is_killed_while_a_claim_is_on_its_way_takes_no_other_down(
    own_redis: RedisServer, run_dir: Path
) -> None:
    """What it was given goes on elsewhere, and what it ran for others ends with an error, never in silence.

    Started again under its name, it has its workers back at once; how they are taken over otherwise is a chaos run.
    """
    async with faulty_cluster(
        run_dir, own_redis, [Point(act="claim", side=Side.REPLY, number=4)], kills=True
    ) as cluster:
        gateways = cluster.processes.gateways
        shots = shots_at(gateways, number=240, within_s=2.0, seed=SEED, deadline_ms=6_000)
        firing = asyncio.create_task(fire(shots))
        await wait_until(lambda: bool(cluster.tap.struck), "the gateway is killed", timeout_s=30)
        await cluster.processes.start_gateway(cluster.struck)
        outcomes = await firing

        told = check_others(cluster, outcomes)
        assert told["served"] >= told.total() / 4, "a slow machine refuses more"
        lost = told.total() - told["served"] - told["queue_full"] - told["shed"]
        assert lost <= 2 * SLOTS, "no more than what it ran and had paused"
        await cluster.processes.wait_until_ready()
        await wait_until(cluster.processes.is_idle, "everything is given back")
        await wait_for_rest(cluster.redis)
        (again,) = await fire(shots_at([cluster.struck], number=1, within_s=0.0, seed=SEED + 1), processes=1)
        assert again.is_served
