"""A minute of overload, with a thousand interactive requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wait_until
from tests.system.overload import CAPACITY_PER_S, check_overload, offer, overload_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_a_thousand_interactive_requests_stay_fast_in_a_minute_of_overload(tmp_path: Path) -> None:
    """A p99 of some hundred samples is that of a few; here it is that of ten."""
    async with overload_cluster(tmp_path) as cluster:
        at_half = await offer(cluster, per_s=0.5 * CAPACITY_PER_S, seconds=30.0, seed=3)
        overloaded = await offer(cluster, per_s=3.0 * CAPACITY_PER_S, seconds=36.0, seed=4)
        print("\n".join(["", "at half load", *at_half.lines(), "at three times", *overloaded.lines()]))
        assert overloaded.told("interactive").total() >= 1_000
        check_overload(at_half, overloaded)
        await wait_until(cluster.is_idle, "everything is given back")
