"""Many clients at once, through the official SDK, against real processes and a scripted worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support import wait_until
from tests.system.cluster import Cluster, script, start_cluster

pytestmark = pytest.mark.system

ECHO = script(output={"kind": "echo"})
SLOW_ECHO = script(output={"kind": "echo"}, delays={"base_us": 20_000})


def client_of(cluster: Cluster, gateway: int = 0) -> openai.AsyncOpenAI:
    """The SDK as applications use it, but for its retries, which would hide refusals."""
    url = f"{cluster.addresses[gateway]}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


async def echo(client: openai.AsyncOpenAI, prompt: str) -> str:
    """One completion of the scripted worker, which says the prompt again and again; a token has at least a letter."""
    answer = await client.completions.create(model="fake", prompt=prompt, max_tokens=len(prompt), temperature=0)
    return answer.choices[0].text


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    flags: tuple[str, ...] = getattr(request, "param", ("--fake-worker", ECHO))
    async with start_cluster(tmp_path, *flags) as cluster:
        yield cluster


async def test_32_clients_at_once_all_complete_each_with_its_own_answer(cluster: Cluster) -> None:
    """None lost, none answered twice, none with the tokens of a neighbour in the batch."""
    prompts = [f"client {number} says {'x' * number} and stops" for number in range(32)]
    async with client_of(cluster) as client:
        answers = await asyncio.gather(*(echo(client, prompt) for prompt in prompts))

    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.startswith(prompt)
    assert await cluster.metric("sluicegate_requests_total", outcome="completed") == 32
    assert await cluster.metric("sluicegate_requests_total") == 32
    await wait_until(cluster.is_idle, "everything is given back")


async def test_streams_advance_together(cluster: Cluster) -> None:
    """Continuous batching from the first day: nobody waits for another's end."""
    seen: list[int] = []

    async def follow(client: openai.AsyncOpenAI, number: int) -> None:
        messages: Any = [{"role": "user", "content": "say much"}]
        async with await client.chat.completions.create(
            model="fake", messages=messages, stream=True, max_tokens=64
        ) as stream:
            async for _ in stream:
                seen.append(number)  # noqa: PERF401 (the order among the streams is the point)

    async with client_of(cluster) as client:
        await asyncio.gather(*(follow(client, number) for number in range(4)))

    first_end = min(len(seen) - 1 - seen[::-1].index(number) for number in range(4))
    assert set(seen[:first_end]) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "cluster",
    [("--fake-worker", SLOW_ECHO, "--max-slots", "4", "--queue-requests", "8")],
    indirect=True,
    ids=["a queue of 8"],
)
async def test_beyond_the_queue_every_client_gets_a_clear_no(cluster: Cluster) -> None:
    """G01: 64 at once on four slots and a queue of eight: each completes or knows when to come back, and it adds up."""

    async def outcome(request: Coroutine[Any, Any, str]) -> str | openai.RateLimitError:
        try:
            return await request
        except openai.RateLimitError as refusal:
            return refusal

    async with client_of(cluster) as client:
        requests = [outcome(echo(client, f"client {number} waits patiently")) for number in range(64)]
        outcomes = await asyncio.gather(*requests)

    refusals = [outcome for outcome in outcomes if isinstance(outcome, openai.RateLimitError)]
    for refusal in refusals:
        headers = refusal.response.headers
        assert int(headers["retry-after"]) >= 1
        assert (refusal.code, headers["x-sluicegate-reason"]) == ("queue_full", "queue_full")
    assert 1 <= len(refusals) <= 64 - 12  # four slots and eight places in the queue are there for the first dozen
    assert await cluster.metric("sluicegate_requests_total", outcome="queue_full") == len(refusals)
    assert await cluster.metric("sluicegate_requests_total", outcome="completed") == 64 - len(refusals)
    assert await cluster.metric("sluicegate_requests_total") == 64
    await wait_until(cluster.is_idle, "everything is given back")


@pytest.mark.parametrize("cluster", [("--fake-worker", SLOW_ECHO)], indirect=True, ids=["slow"])
async def test_a_client_that_dies_half_way_leaves_nothing_in_use(cluster: Cluster) -> None:
    """Nothing is generated for nobody."""
    body = b'{"model": "fake", "prompt": "a long story", "max_tokens": 2000, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    host, port = cluster.addresses[0].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head % len(body) + body)
    await reader.readuntil(b"data: ")
    assert await cluster.metric("sluicegate_slots_in_use") == 1
    assert await cluster.metric("sluicegate_kv_blocks_in_use") >= 1

    writer.transport.abort()

    await wait_until(cluster.is_idle, "slot and blocks are given back", timeout_s=1.0)
    assert await cluster.metric("sluicegate_requests_total", outcome="cancelled") == 1


async def test_any_gateway_and_any_worker_serve(tmp_path: Path) -> None:
    """Two of each: tokens find their way from every driver to every origin."""
    flags = ("--fake-worker", SLOW_ECHO, "--workers", "2", "--max-slots", "4")
    async with start_cluster(tmp_path, *flags, gateways=2) as cluster:
        async with client_of(cluster, 0) as first, client_of(cluster, 1) as second:
            for client in (first, second):
                assert [model.id async for model in client.models.list()] == ["fake"]
            prompts = [f"request {number:02} is told again" for number in range(24)]
            clients = [(first, second)[number % 2] for number in range(24)]
            answers = await asyncio.gather(*map(echo, clients, prompts))

        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.startswith(prompt)
        assert await cluster.metric("sluicegate_requests_total", outcome="completed") == 24
        await wait_until(cluster.is_idle, "everything is given back")
