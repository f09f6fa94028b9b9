"""Storm after storm, at several sizes of the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.redis_server import RedisServer
from tests.documented_keys import wait_for_rest
from tests.support import wait_until
from tests.system.storm import check_answers, storm, storm_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.mark.parametrize("bound", [1, 8, 32])
async def test_storms_of_fifty_times_the_bound_are_bounded_and_answered(
    own_redis: RedisServer, run_dir: Path, bound: int
) -> None:
    """At once, and then as a sustained one in which slots free and fill: chance has more places to strike."""
    async with storm_cluster(run_dir, own_redis, bound=bound) as cluster:
        for seed, within_s in enumerate((0.0, 2.0, 0.0, 8.0)):
            outcomes = await storm(cluster, shots=50 * bound, within_s=within_s, seed=seed)
            print(bound, within_s, dict(check_answers(outcomes)))
            await wait_until(cluster.processes.is_idle, "everything is given back")
        assert max(cluster.watched.told) == bound
        assert max(cluster.watched.sampled) <= bound
        await wait_for_rest(cluster.redis)
