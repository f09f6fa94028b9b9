"""`sluicegate up` under stopwatches serves as it does without."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.bench.layers.marks import Kind, between, read
from tests.system.cluster import script, start_cluster

pytestmark = pytest.mark.system

ITERATION_S = 0.005
WORKER = script(output={"kind": "echo"}, slots=4, delays={"base_us": round(1e6 * ITERATION_S)})


async def test_worker_and_gateway_tell_where_the_time_of_their_iterations_goes(tmp_path: Path) -> None:
    """Layers that do not add up to the time that passed, or a layer that nothing counts for, would be a wrong table."""
    module = ("tests.bench.layers.up", str(tmp_path))
    body = {"model": "fake", "prompt": "Hello there you", "ignore_eos": True, "max_tokens": 50, "stream": True}
    async with (
        start_cluster(tmp_path, "--fake-worker", WORKER, module=module) as cluster,
        aiohttp.ClientSession() as http,
        http.post(f"{cluster.base_url}/completions", json=body) as answer,
    ):
        events = [line async for line in answer.content if line.startswith(b"data:")]
    assert events[-1].strip() == b"data: [DONE]"
    worker = [mark for mark in read(tmp_path / "workers.json") if mark.decodes or mark.prompt_tokens]
    gateway = read(tmp_path / "gateway.json")
    assert len(worker) == 50
    spent = between(worker[0], worker[-1], "engine")
    assert spent["script"] >= 49 * ITERATION_S
    assert sum(spent.values()) == pytest.approx(worker[-1].at_s - worker[0].at_s, abs=10 * ITERATION_S)
    assert [mark.kind for mark in gateway].count(Kind.REPORT) >= 50
    spent = between(gateway[0], gateway[-1], "loop")
    assert all(spent[layer] > 0 for layer in ("wire", "scheduler", "driver", "origin", "events", "talking to Redis"))
    assert sum(spent.values()) <= gateway[-1].cpu_s - gateway[0].cpu_s
