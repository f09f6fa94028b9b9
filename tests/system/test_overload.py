"""At three times what the worker can serve: interactive requests stay fast, and the rest is served or told no."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wait_until
from tests.system.overload import CAPACITY_PER_S, check_overload, offer, overload_cluster

pytestmark = pytest.mark.system


async def test_overload_slows_nobody_interactive_and_leaves_nobody_without_an_answer(tmp_path: Path) -> None:
    """What priorities are for. Batch gets what is left, in bounded time, and the rest of it an explicit no."""
    async with overload_cluster(tmp_path) as cluster:
        at_half = await offer(cluster, per_s=0.5 * CAPACITY_PER_S, seconds=6.0, seed=1)
        overloaded = await offer(cluster, per_s=3.0 * CAPACITY_PER_S, seconds=8.0, seed=2)
        check_overload(at_half, overloaded)
        await wait_until(cluster.is_idle, "everything is given back")
