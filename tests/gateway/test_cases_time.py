"""Cases of clocks that jump or disagree, against whole gateways: no duration is negative, and nobody expires early."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest
import redis.asyncio

from gateway.clock import monotonic_us
from gateway.errors import Reason
from tests.gateway.front_door import door
from tests.gateway.small_cluster import is_idle, member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript

PROMPT = tuple(range(40, 60))
HOUR_S = 3600
FIVE_SECONDS_US = 5_000_000
LONG_MS = 60_000


async def test_a_wall_clock_that_jumps_ends_nothing_early_and_makes_no_duration_negative(
    url: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G11: what a gateway measures and limits, it measures on a clock that nobody sets."""
    true_time, jumps = time.time, itertools.cycle([0, HOUR_S, -HOUR_S, 2, -2])
    monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
    async with door(url, run_dir) as served:
        requests = [served.complete(max_tokens=200, deadline_ms=LONG_MS) for _ in range(12)]
        answers = await asyncio.gather(*requests)
        await served.idle()
        registry = served.gateway.metrics.registry
        samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert [answer.status for answer in answers] == [200] * 12
    assert [sample for sample in samples if not sample.name.endswith("_created") and sample.value < 0] == []


@pytest.mark.parametrize("skew_us", [FIVE_SECONDS_US, -FIVE_SECONDS_US], ids=["ahead", "behind"])
async def test_gateways_whose_clocks_disagree_serve_each_other(url: str, run_dir: Path, skew_us: int) -> None:
    """G11: a deadline is its origin's alone: a driver that is ahead ends nothing early, and one behind nothing late."""
    worker = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=2))
    await worker.start(f"unix:{run_dir}/w0")
    async with member(
        url, run_dir, "driver", workers=(worker.address,), clock=lambda: monotonic_us() + skew_us
    ) as driver:
        await driver.ready()
        async with member(url, run_dir, "origin") as origin:
            await origin.ready()
            deadline_us = monotonic_us() + FIVE_SECONDS_US // 2
            streams = [await origin.submit(prompt_ids=PROMPT, deadline_us=deadline_us) for _ in range(4)]
            assert [(await read_all(stream)).finish for stream in streams] == ["length"] * 4
            worker.gate.clear()
            late = await origin.submit(prompt_ids=PROMPT, deadline_us=monotonic_us() + 100_000)
            async with asyncio.timeout(2.0):
                assert (await read_all(late)).error is Reason.DEADLINE_EXCEEDED
            worker.gate.set()
            await wait_until(lambda: is_idle(driver), "everything is free again")
    await worker.kill()


async def test_a_redis_whose_clock_jumps_ahead_costs_no_request(
    url: str, run_dir: Path, redis_client: redis.asyncio.Redis
) -> None:
    """G11: an hour ahead, every short lifetime ends at once; leases, cards and addresses are soon there again."""
    async with door(url, run_dir) as served:
        running = [asyncio.create_task(served.complete(max_tokens=1000)) for _ in range(4)]
        await wait_until(lambda: served.slots > 0, "some run")
        served.worker.gate.clear()
        waiting = [asyncio.create_task(served.complete(max_tokens=50)) for _ in range(4)]

        async def they_wait() -> bool:
            return await served.waiting() >= len(waiting)

        await wait_until(they_wait, "some wait")
        ended = [key async for key in redis_client.scan_iter() if 0 < await redis_client.ttl(key) <= HOUR_S]
        assert await redis_client.delete(*ended) == len(ended) > 2
        served.worker.gate.set()
        answers = await asyncio.gather(*running, *waiting)
        assert [answer.status for answer in answers] == [200] * 8
        assert (await served.complete()).status == 200
        await served.idle()
        assert len(served.worker.epochs) == 1, "the worker stayed with its driver"
