"""At three times what the worker can serve: interactive requests stay fast, and the rest is served or told no."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wait_until
from tests.system.overload import CAPACITY_PER_S, check_answers, check_overload, offer, overload_cluster

pytestmark = pytest.mark.system

MEASURED_AT_MOST = 3
"""Times are those of a machine that others share: they count when they are good once. Answers count each time."""


async def test_overload_slows_nobody_interactive_and_leaves_nobody_without_an_answer(tmp_path: Path) -> None:
    """What priorities are for. Batch gets what is left, in bounded time, and the rest of it an explicit no."""
    async with overload_cluster(tmp_path) as cluster:
        failure: AssertionError | None = None
        for attempt in range(MEASURED_AT_MOST):
            at_half = await offer(cluster, per_s=0.5 * CAPACITY_PER_S, seconds=6.0, seed=2 * attempt + 1)
            overloaded = await offer(cluster, per_s=3.0 * CAPACITY_PER_S, seconds=8.0, seed=2 * attempt + 2)
            check_answers(at_half)
            check_answers(overloaded)
            await wait_until(cluster.is_idle, "everything is given back")
            try:
                check_overload(at_half, overloaded)
            except AssertionError as error:
                failure = error
            else:
                return
        assert failure is None, f"measured {MEASURED_AT_MOST} times; the last: {failure}"
