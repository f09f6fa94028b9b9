"""Cases of stopping, with real processes: what runs finishes, what comes is refused, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from tests.support import wait_until
from tests.system.cluster import Cluster, descendants, script, start_cluster, still_running
from tests.system.test_stopping import Story

pytestmark = pytest.mark.system

SIXTEEN = script(output={"kind": "words"}, delays={"base_us": 20_000}, slots=16)
STUCK = script(output={"kind": "words"}, delays={"base_us": 20_000}, faults=[{"kind": "hang", "at": 20, "seconds": 60}])


async def status_of(http: aiohttp.ClientSession, cluster: Cluster, path: str) -> int | None:
    """None: nobody listens any more."""
    try:
        async with http.get(f"{cluster.addresses[0]}{path}") as answer:
            return answer.status
    except aiohttp.ClientError:
        return None


async def test_a_sigterm_to_the_whole_process_group_cuts_nobody(tmp_path: Path) -> None:
    """D14: 16 streams run and 20 requests wait; all finish, the new one is refused at once, and nobody is orphaned."""
    async with (
        start_cluster(tmp_path, "--fake-worker", SIXTEEN, "--drain-s", "30") as cluster,
        aiohttp.ClientSession() as http,
    ):
        stories = [Story(cluster, max_tokens=30) for _ in range(36)]
        reading = [asyncio.create_task(story.read()) for story in stories]

        async def twenty_wait() -> bool:
            return await cluster.metric("sluicegate_queue_requests") == 20

        await wait_until(twenty_wait, "16 run, 20 wait")
        children = descendants(cluster.process.pid)

        os.killpg(cluster.process.pid, signal.SIGTERM)

        async def is_unready() -> bool:
            return await status_of(http, cluster, "/readyz") == 503

        await wait_until(is_unready, "it is unready")
        assert await status_of(http, cluster, "/livez") == 200
        url, new = f"{cluster.base_url}/completions", {"model": "fake", "prompt": "too late", "max_tokens": 1}
        async with http.post(url, json=new) as refused:
            assert (refused.status, refused.headers["x-sluicegate-reason"]) == (503, "draining")
            assert int(refused.headers["Retry-After"]) >= 1
        await asyncio.wait_for(asyncio.gather(*reading), 30)
        assert [story.last_event for story in stories] == ["[DONE]"] * 36
        assert await asyncio.wait_for(cluster.process.wait(), 30) == 0
        await wait_until(lambda: not still_running(children), "no child is left")


async def test_a_second_sigterm_ends_everything_at_once(tmp_path: Path) -> None:
    """D14: whoever signals twice does not want to wait for a stream that is stuck, nor for the drain time."""
    async with start_cluster(tmp_path, "--fake-worker", STUCK, "--drain-s", "60") as cluster:
        story = Story(cluster)
        reading = asyncio.create_task(story.read())
        await wait_until(story.has_begun, "the stream has begun")
        children = descendants(cluster.process.pid)
        cluster.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: "Stopping" in cluster.out, "it stops")
        assert cluster.process.returncode is None

        signalled_s = time.monotonic()
        cluster.process.send_signal(signal.SIGTERM)

        assert await asyncio.wait_for(cluster.process.wait(), 10) == 1
        assert time.monotonic() - signalled_s < 10
        await wait_until(lambda: not still_running(children), "no child is left")
        with pytest.raises(aiohttp.ClientError):
            await reading
