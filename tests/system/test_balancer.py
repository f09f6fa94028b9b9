"""Two gateways behind a real HAProxy and a real nginx, with the configurations that we hand out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.support import wait_until
from tests.system.balancer import HAPROXY, NGINX, Kind, balancer
from tests.system.cluster import (
    Cluster,
    consecutive_free_ports,
    descendants,
    script,
    start_cluster,
    sum_of_samples,
)

pytestmark = pytest.mark.system

SLOW = script(output={"kind": "echo"}, delays={"base_us": 10_000}, slots=2)
FLAGS = ("--workers", "2", "--fake-worker", SLOW, "--queue-requests", "1", "--drain-s", "30")


@dataclass
class Balanced:
    """A cluster, and the balancer in front of it."""

    cluster: Cluster
    url: str
    http: aiohttp.ClientSession

    def post(self, **fields: Any) -> Any:
        body = {"model": "fake", "prompt": "Hello there", "ignore_eos": True, "max_tokens": 4} | fields
        return self.http.post(f"{self.url}/v1/completions", json=body)

    async def outcomes(self, outcome: str) -> float:
        return await self.cluster.metric("sluicegate_requests_total", outcome=outcome)


BOTH = (pytest.param((HAPROXY, "1s"), id="haproxy"), pytest.param((NGINX, ""), id="nginx"))
LATE = (pytest.param((HAPROXY, "60s"), id="haproxy"), pytest.param((NGINX, ""), id="nginx"))
"""Each kind, with the pause between its health checks; nginx makes none."""

ONLY_HAPROXY = BOTH[:1]


@pytest.fixture(params=BOTH)
async def balanced(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Balanced]:
    kind, check_every = request.param
    async with (
        start_cluster(tmp_path, *FLAGS, gateways=2) as cluster,
        balancer(kind, tmp_path, [host_of(address) for address in cluster.addresses], check_every=check_every) as url,
        aiohttp.ClientSession() as http,
    ):
        await serves(http, url)
        yield Balanced(cluster, url, http)


def host_of(address: str) -> str:
    return address.removeprefix("http://")


async def serves(http: aiohttp.ClientSession, url: str) -> None:
    async def is_ready() -> bool:
        async with http.get(f"{url}/readyz") as answer:
            return answer.status == 200

    await wait_until(is_ready, "the balancer has found the gateways")


async def test_both_gateways_serve_and_the_sdk_sees_one(balanced: Balanced) -> None:
    """Any gateway accepts a request, any driver serves it."""
    async with openai.AsyncOpenAI(base_url=f"{balanced.url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(6):
            answer = await client.completions.create(model="fake", prompt="Hello there", max_tokens=4)
            assert answer.choices[0].text
    for address in balanced.cluster.addresses:
        async with balanced.http.get(f"{address}/metrics") as metrics:
            assert sum_of_samples(await metrics.text(), "sluicegate_requests_total", {"outcome": "completed"}) >= 1
    assert await balanced.outcomes("completed") == 6


async def test_a_stream_is_not_collected_on_its_way(balanced: Balanced) -> None:
    """The first token is here while the last is far from being made."""
    async with balanced.post(stream=True, max_tokens=300) as answer:
        assert (await answer.content.readline()).startswith(b"data: ")
        assert await balanced.outcomes("completed") == 0
        lines = [line async for line in answer.content]
    assert lines[-2] == b"data: [DONE]\n"


async def test_a_429_passes_and_is_tried_nowhere_else(balanced: Balanced) -> None:
    """The whole cluster has said no; asking the next gateway would only double the load."""
    streams = [asyncio.create_task(read(balanced, max_tokens=300)) for _ in range(4)]

    async def slots_are_taken() -> bool:
        return await balanced.cluster.metric("sluicegate_slots_in_use") == 4

    async def one_waits() -> bool:
        return await balanced.cluster.metric("sluicegate_queue_requests") == 2  # the same one, on each gateway

    await wait_until(slots_are_taken, "every slot is taken")
    streams.append(asyncio.create_task(read(balanced, max_tokens=4)))
    await wait_until(one_waits, "the queue is full")
    async with balanced.post() as refused:
        assert refused.status == 429
        assert refused.headers["x-sluicegate-reason"] == "queue_full"
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await refused.json())["error"]["code"] == "queue_full"
    assert await balanced.outcomes("queue_full") == 1
    assert await asyncio.gather(*streams) == [200] * 5


async def read(balanced: Balanced, **fields: Any) -> int:
    async with balanced.post(**fields) as answer:
        await answer.read()
        return int(answer.status)


@asynccontextmanager
async def draining(balanced: Balanced, address: str) -> AsyncIterator[None]:
    """The gateway there drains in the block, for a stream of its own still runs, and is not cut."""
    body = {"model": "fake", "prompt": "Hi", "ignore_eos": True, "max_tokens": 600, "stream": True}
    async with balanced.http.post(f"{address}/v1/completions", json=body) as stream:
        await stream.content.readline()
        os.kill(gateway_at(balanced.cluster, address), signal.SIGTERM)

        async def is_draining() -> bool:
            async with balanced.http.get(f"{address}/readyz") as answer:
                return answer.status == 503

        await wait_until(is_draining, "the gateway drains")
        yield
        lines = [line async for line in stream.content]
    assert lines[-2] == b"data: [DONE]\n"


async def refusals_while_draining(balanced: Balanced, address: str) -> float:
    async with balanced.http.get(f"{address}/metrics") as metrics:
        return sum_of_samples(await metrics.text(), "sluicegate_requests_total", {"outcome": "draining"})


@pytest.mark.parametrize("balanced", LATE, indirect=True)
async def test_what_a_draining_gateway_refuses_is_served_by_the_other(balanced: Balanced) -> None:
    """Until the balancer notices, half of the requests go there; their clients must not."""
    first = balanced.cluster.addresses[0]
    async with draining(balanced, first):
        assert await asyncio.gather(*[read(balanced) for _ in range(4)]) == [200] * 4
        assert await refusals_while_draining(balanced, first) >= 1


@pytest.mark.parametrize("balanced", ONLY_HAPROXY, indirect=True)
async def test_a_draining_gateway_is_soon_asked_no_more(balanced: Balanced, tmp_path: Path) -> None:
    """Its readiness says so, before its socket closes."""
    first = balanced.cluster.addresses[0]
    async with draining(balanced, first):
        log = HAPROXY.log(tmp_path)
        await wait_until(lambda: "gateways/gateway-1 is DOWN" in log.read_text(), "the balancer notices")
        assert await asyncio.gather(*[read(balanced) for _ in range(4)]) == [200] * 4
        assert await refusals_while_draining(balanced, first) == 0


async def test_when_every_gateway_drains_a_client_hears_it_as_from_one(balanced: Balanced) -> None:
    """No page of the balancer's own, which no client of OpenAI's API can read."""
    first, second = balanced.cluster.addresses
    async with draining(balanced, first), draining(balanced, second), balanced.post() as refused:
        assert refused.status == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await refused.json())["error"]["code"] in {"draining", "no_worker"}


def gateway_at(cluster: Cluster, address: str) -> int:
    port = address.rpartition(":")[2].encode()
    (pid,) = [
        pid
        for pid in descendants(cluster.process.pid)
        if b"\0gateway\0--port\0" + port + b"\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


async def test_a_client_that_leaves_while_it_waits_takes_its_request_along(balanced: Balanced) -> None:
    """Behind a balancer too, nothing is computed for nobody."""
    leaving = asyncio.create_task(read(balanced, max_tokens=2000))

    async def runs() -> bool:
        return await balanced.cluster.metric("sluicegate_slots_in_use") == 1

    await wait_until(runs, "it runs")
    leaving.cancel()
    await wait_until(balanced.cluster.is_idle, "its slot and blocks are free")
    assert await balanced.outcomes("cancelled") == 1


async def test_metrics_are_not_for_clients(balanced: Balanced) -> None:
    """Operators ask each gateway itself; the balancer would give them one at random."""
    async with balanced.http.get(f"{balanced.url}/metrics") as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "unknown_route"


@pytest.mark.parametrize("kind", [HAPROXY, NGINX], ids=str)
async def test_without_any_gateway_the_balancer_answers_as_one_would(kind: Kind, tmp_path: Path) -> None:
    """A client of OpenAI's API can read every answer, also that of nobody."""
    _, *nobody = consecutive_free_ports(3)  # the balancer takes the first for itself
    async with (
        balancer(kind, tmp_path, [f"127.0.0.1:{port}" for port in nobody]) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.InternalServerError) as raised:
            await client.completions.create(model="fake", prompt="Hi")
    assert (raised.value.status_code, raised.value.code) == (503, "no_worker")
    assert raised.value.response.headers["Retry-After"] == "2"
    assert raised.value.response.headers["x-sluicegate-reason"] == "no_worker"
