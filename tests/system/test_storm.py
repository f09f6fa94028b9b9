"""Fifty times more requests at once than may wait: bounded at every moment, and each of them answered once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.redis_server import RedisServer
from tests.documented_keys import wait_for_rest
from tests.support import wait_until
from tests.system.cluster import metric_of
from tests.system.storm import check_answers, storm, storm_cluster

pytestmark = pytest.mark.system

BOUND = 8
SHOTS = 50 * BOUND


async def test_a_storm_is_bounded_answered_once_each_and_leaves_the_documented_keys(
    own_redis: RedisServer, run_dir: Path
) -> None:
    """The promise of the door, whole: no more wait than may, nobody is lost, and nothing piles up."""
    async with storm_cluster(run_dir, own_redis, bound=BOUND) as cluster:
        outcomes = await storm(cluster, shots=SHOTS, within_s=0.0, seed=1)
        print(
            check_answers(outcomes),
            len(cluster.watched.told),
            max(cluster.watched.told),
            len(cluster.watched.sampled),
            max(cluster.watched.sampled),
            max(o.end_s for o in outcomes),
        )
        told = check_answers(outcomes)
        assert told["served"] >= 16, "what the slots and the queue have room for"
        assert told.total() == SHOTS

        watched = cluster.watched
        assert len(watched.told) >= SHOTS / 2
        assert max(watched.told) == BOUND, "the queue was full, and never fuller"
        assert len(watched.sampled) >= 50
        assert max(watched.sampled) <= BOUND

        addresses = [gateway.address for gateway in cluster.processes.gateways]
        computed = await metric_of(addresses, "sluicegate_output_tokens_total")
        assert computed == sum(len(outcome.text) for outcome in outcomes), "nothing was computed twice, or for nobody"

        counted = {code: await metric_of(addresses, "sluicegate_requests_total", outcome=code) for code in told}
        counted["served"] = await metric_of(addresses, "sluicegate_requests_total", outcome="completed")
        assert counted == told
        assert await metric_of(addresses, "sluicegate_requests_total") == SHOTS

        await wait_until(cluster.processes.is_idle, "everything is given back")
        await wait_for_rest(cluster.redis)
