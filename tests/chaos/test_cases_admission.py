"""The long forms of the cases of a full queue, against two gateways."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import pytest

from gateway.redis_server import RedisServer
from tests.documented_keys import wait_for_rest
from tests.support import wait_until
from tests.system.cluster import script, start_cluster
from tests.system.load import REFUSALS, Shot, fire
from tests.system.overload import Service, percentile
from tests.system.storm import StormCluster, check_answers, fire_watched, storm_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ITERATION_S = 0.05
SLOTS = 4
TOKENS = 16
WORKER = script(output={"kind": "echo"}, delays={"base_us": round(ITERATION_S * 1_000_000)}, slots=SLOTS, blocks=4096)

QUEUE = 32
MOST_WAITING = {"interactive": 8, "standard": 12, "batch": 24}
MOST_WAITING_TOKENS = {"batch": 400}
HEAD_START_S = {"interactive": 4, "standard": 2, "batch": 0}
# What is preempted waits past its class's bounds: here nothing is, so they are exact.
CLASSES = f"""
[interactive]
rank = 0
head-start-s = {HEAD_START_S["interactive"]}
service-tier = "priority"
max-priority = -1
max-waiting = {MOST_WAITING["interactive"]}
sheds = true
preempts = false

[standard]
rank = 1
head-start-s = {HEAD_START_S["standard"]}
service-tier = "default"
max-priority = 0
max-waiting = {MOST_WAITING["standard"]}
sheds = true
preempts = false

[batch]
rank = 2
service-tier = "flex"
max-waiting = {MOST_WAITING["batch"]}
max-waiting-tokens = {MOST_WAITING_TOKENS["batch"]}
sheddable = true
"""


async def test_a_minute_of_overload_of_three_classes_passes_no_bound_and_serves_as_much_as_ever(
    own_redis: RedisServer, run_dir: Path
) -> None:
    """G01: whoever offers, and whatever is shed, no class has more in the line than it may, and no slot is idle."""
    (run_dir / "classes.toml").write_text(CLASSES)
    flags = ("--classes", str(run_dir / "classes.toml"))
    async with storm_cluster(run_dir, own_redis, bound=QUEUE, worker=WORKER, flags=flags) as cluster:
        peak_per_s = Service(outcomes=tuple(await fire(_full_house(cluster)))).served_per_s
        outcomes = await fire_watched(cluster, _open_loop(cluster, per_s=3 * peak_per_s, seconds=60.0))
        told, overloaded = check_answers(outcomes), Service(outcomes=tuple(outcomes))
        refused_s = sorted(outcome.end_s for outcome in outcomes if outcome.is_refused)
        print("", dict(told), dict(cluster.watched.most), sep="\n")
        print(f"peak {peak_per_s:.1f}, under overload {overloaded.served_per_s:.1f} served per second")
        print(f"a 429: p50 {1000 * percentile(refused_s, 50):.0f} ms, p99 {1000 * percentile(refused_s, 99):.0f} ms")

        assert {"served", "shed", "class_full"} <= set(told)
        most = cluster.watched.most
        assert max(cluster.watched.told) <= QUEUE
        for name, bound in MOST_WAITING.items():
            assert 0 < most[f"class:{name}"] <= bound
        assert most["class_tokens:batch"] <= MOST_WAITING_TOKENS["batch"]
        assert overloaded.served_per_s >= 0.9 * peak_per_s
        for name, head_start_s in HEAD_START_S.items():
            longest_s = HEAD_START_S["interactive"] - head_start_s + QUEUE / overloaded.served_per_s
            assert overloaded.first_token_s(name)[-1] <= longest_s + 1.0, (
                "the wait bound of aging, and an iteration or two"
            )
        await wait_until(cluster.processes.is_idle, "everything is given back")
        await wait_for_rest(cluster.redis)


def _full_house(cluster: StormCluster) -> list[Shot]:
    """As much as slots and queue hold, at once: no worker is idle until the last ones run."""
    gateways = cluster.processes.gateways
    return [
        Shot(name=f"p{number:05}", url=gateways[number % 2].completions, class_name=name, max_tokens=TOKENS)
        for number, name in enumerate(["interactive"] * 8 + ["standard"] * 12 + ["batch"] * 12)
    ]


def _open_loop(cluster: StormCluster, *, per_s: float, seconds: float) -> list[Shot]:
    chance, at_s, shots = random.Random(1), 0.0, []
    while (at_s := at_s + chance.expovariate(per_s)) < seconds:
        shots.append(
            Shot(
                name=f"o{len(shots):05}",
                url=chance.choice(cluster.processes.gateways).completions,
                at_s=at_s,
                class_name=chance.choices(list(MOST_WAITING), weights=[1, 2, 4])[0],
                max_tokens=TOKENS,
                stream=chance.random() < 0.5,
            )
        )
    return shots


# --- clients that come back -------------------------------------------------------------------------------------------

CLIENTS = 500
BUCKET_S = 0.1
SDK_RETRIES = 2
FAST = script(output={"kind": "echo"}, delays={"base_us": 20_000}, slots=8, blocks=4096)


@dataclass(frozen=True, slots=True)
class Returns:
    """When requests that are a second or third attempt were sent."""

    at_s: list[float] = field(default_factory=list)

    async def see(self, request: httpx.Request) -> None:
        if int(request.headers["x-stainless-retry-count"]) > 0:
            self.at_s.append(time.monotonic())

    def share_of_fullest_bucket(self) -> float:
        buckets = Counter(int((at_s - self.at_s[0]) / BUCKET_S) for at_s in sorted(self.at_s))
        return max(buckets.values()) / len(self.at_s)


@asynccontextmanager
async def _sdk(url: str, returns: Returns) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK with its own retries, as it comes."""
    async with (
        openai.DefaultAsyncHttpxClient(event_hooks={"request": [returns.see]}) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=SDK_RETRIES, http_client=http) as client,
    ):
        yield client


async def _ask(client: openai.AsyncOpenAI, number: int) -> str:
    """What became of one client: ``served``, or the code of its last refusal."""
    prompt = f"client {number:03};"
    try:
        answer = await client.completions.create(
            model="fake", prompt=prompt, max_tokens=len(prompt), extra_body={"ignore_eos": True}
        )
    except openai.RateLimitError as refused:
        return _checked(refused)
    assert answer.choices[0].text.startswith(prompt)
    return "served"


def _checked(refused: openai.RateLimitError) -> str:
    headers = refused.response.headers
    assert refused.code in REFUSALS
    assert headers["x-sluicegate-reason"] == refused.code
    assert 1 <= int(headers["retry-after"]) <= 60
    assert 1_000 <= int(headers["retry-after-ms"]) <= 60_000
    return refused.code


async def test_five_hundred_clients_of_the_sdk_come_back_spread_and_each_hears_how_it_ended(tmp_path: Path) -> None:
    """G03: their own retries must not be a second storm, and the cluster is as before once they are through."""
    flags = ("--fake-worker", FAST, "--workers", "2", "--queue-requests", "64")
    returns = Returns()
    async with start_cluster(tmp_path, *flags, gateways=2) as cluster:
        async with _sdk(cluster.addresses[0], returns) as first, _sdk(cluster.addresses[1], returns) as second:
            began_s = time.monotonic()
            told = Counter(await asyncio.gather(*(_ask((first, second)[n % 2], n) for n in range(CLIENTS))))
            took_s = time.monotonic() - began_s
            print(f"\n{dict(told)}, {len(returns.at_s)} returns in {took_s:.1f} s,", end=" ")
            print(f"at most {100 * returns.share_of_fullest_bucket():.1f} % of them within {BUCKET_S:.1f} s")
            assert told["served"] > 64 + 16, "more than were let in at once"
            assert len(returns.at_s) > CLIENTS / 2
            assert returns.share_of_fullest_bucket() <= 0.05
            await wait_until(cluster.is_idle, "everything is given back")
            assert await _ask(first, CLIENTS) == "served"
        assert await cluster.metric("sluicegate_requests_total") == CLIENTS + len(returns.at_s) + 1
