"""Gateways that end: what runs finishes, is handed over, or is cut with a typed end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.errors import Reason, Refused
from tests.gateway.small_cluster import PROMPT, echoed, member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


async def test_draining_refuses_new_requests_and_lets_the_others_finish(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """D14: a rolling restart cuts no stream, not even one that still waits in the queue."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        streams = [await gateway.submit(max_tokens=20, prompt_ids=PROMPT) for _ in range(5)]
        draining = asyncio.create_task(gateway.assembly.drain(10.0))
        await wait_until(lambda: not gateway.assembly.machinery.readiness().ready, "the gateway is unready")
        with pytest.raises(Refused) as refused:
            await gateway.submit()
        assert refused.value.reason is Reason.DRAINING
        worker.gate.set()
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [answer.token_ids for answer in answers] == [echoed(20)] * 5
        await draining
        assert len(gateway.assembly.drivers) == 0


async def test_what_outlives_the_drain_time_is_cut_with_a_typed_end(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """D14: a stop is bounded, and never looks like a finished answer."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        stream = await gateway.submit(max_tokens=2000, prompt_ids=PROMPT)
        await anext(stream)
        worker.gate.clear()
        await gateway.assembly.drain(0.1)
        assert (await read_all(stream)).error is Reason.DRAINING
        assert len(gateway.assembly.drivers) == 0


async def test_a_draining_driver_hands_over_what_it_runs_for_another_gateway(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """The client of another gateway notices nothing: the next driver goes on, token for token."""
    async with (
        member(url, run_dir, "leaving", workers=(worker.address,)) as leaving,
        member(url, run_dir, "staying", workers=(worker.address,)) as staying,
    ):
        await leaving.ready()
        await staying.ready()
        driver, origin = (leaving, staying) if len(leaving.assembly.drivers) else (staying, leaving)
        stream = await origin.submit(max_tokens=1500, prompt_ids=PROMPT)
        first = await anext(stream)
        await driver.assembly.drain(0.0)
        rest = await read_all(stream)
        assert (first.token_ids + rest.token_ids, rest.finish) == (echoed(1500), "length")
        assert len(origin.assembly.drivers) == 1
