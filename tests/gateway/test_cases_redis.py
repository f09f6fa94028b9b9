"""Cases of a Redis, or a gateway in the middle of its acts, that goes away, against whole gateways."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis.asyncio

from admission.keys import WORKER_PREFIX, QueueKeys
from admission.queue import Claim
from gateway.driver import Driver
from gateway.redis_server import RedisServer
from tests.admission.redis_proxy import RedisProxy
from tests.gateway.front_door import door, posted
from tests.gateway.raw_http import connection
from tests.gateway.small_cluster import Member, is_idle, member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript

HANG_GUARD_S = 2.5
PROMPT = tuple(range(40, 60))


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 0.1)


def tag_of(number: int) -> str:
    return f"this is the story number {number} and no other "


async def test_a_client_that_hangs_up_in_an_act_leaves_nobody_another_ones_answer(
    url: str, redis_server: RedisServer, run_dir: Path
) -> None:
    """G04: each of 300 requests asks for its own text back, half of them leave while Redis is slow to answer."""
    choose = random.Random(4)
    async with RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket).running() as proxy:
        assert url == redis_server.url
        async with door(proxy.url, run_dir) as served:
            proxy.delay_s = 0.01

            async def hang_up(number: int) -> None:
                async with connection(served.port) as (_, writer):
                    writer.write(posted(prompt=tag_of(number)))
                    await asyncio.sleep(choose.uniform(0, 0.12))

            async def ask(number: int) -> bool:
                """Whether it was answered, with its own text; on a machine that stalls for a second Redis is away."""
                answer = await served.complete(prompt=tag_of(number), max_tokens=12)
                if answer.status == 503:
                    assert answer.json["error"]["code"] == "store_unavailable"
                    return False
                assert answer.status == 200
                assert tag_of(number).startswith(answer.text[: len(tag_of(number))])
                return True

            answered: list[bool] = []
            for first in range(0, 300, 50):
                numbers = range(first, first + 50)
                asked = [ask(number) for number in numbers if number % 2]
                left = [hang_up(number) for number in numbers if not number % 2]
                answered += (await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*left)))[0]
            assert answered.count(True) > 100, "of 150"
            await served.idle()


@pytest.mark.parametrize("how", ["refused", "black hole"])
async def test_a_request_without_a_redis_is_refused_soon(own_redis: RedisServer, run_dir: Path, how: str) -> None:
    """G06: the first one waits for Redis as long as an act may take, even if the tokenizer must come from there."""
    proxy = RedisProxy(socket=run_dir / "proxy.sock", redis_socket=own_redis.socket)
    async with proxy.running(), door(proxy.url, run_dir) as served:
        if how == "refused":
            await own_redis.stop()
        else:
            proxy.loses_replies = True
        for _ in range(3):
            asked_s = time.monotonic()
            answer = await served.complete()
            assert (answer.status, answer.json["error"]["code"]) == (503, "store_unavailable")
            assert int(answer.headers["Retry-After"]) >= 1
            assert time.monotonic() - asked_s < HANG_GUARD_S
        await wait_until(lambda: not served.gateway.assembly.machinery.readiness().ready, "it is unready")
        proxy.loses_replies = False
    if how == "refused":
        await own_redis.start()


@pytest.mark.usefixtures("quick_beats")
@pytest.mark.parametrize("missing", ["entries", "lines", "totals", "payloads"])
async def test_a_queue_that_lost_a_key_is_begun_anew_and_everybody_is_served(
    url: str, redis_client: redis.asyncio.Redis, run_dir: Path, missing: str
) -> None:
    """G08: what a Redis that evicts may do to us; those who waited are offered again by their origins."""
    async with door(url, run_dir) as served:
        running = [asyncio.create_task(served.complete(max_tokens=800)) for _ in range(4)]
        await wait_until(lambda: served.slots == 4, "every slot is taken")
        served.worker.gate.clear()
        waiting = [asyncio.create_task(served.complete()) for _ in range(4)]

        async def they_wait() -> bool:
            return await served.waiting() == 4

        await wait_until(they_wait, "they wait")
        await redis_client.delete(getattr(QueueKeys.of("fake"), missing))
        await wait_until(lambda: served.gateway.value("sluicegate_moves_total") == 4, "they are offered again")
        served.worker.gate.set()
        assert [answer.status for answer in await asyncio.gather(*running, *waiting)] == [200] * 8
        await served.idle()
        totals = await redis_client.hgetall(QueueKeys.of("fake").totals)
        assert min(int(count) for count in totals.values()) >= 0


def lose(_: Sequence[Claim]) -> None:
    """Takes claims, and dies before anything comes of them."""


@pytest.mark.usefixtures("quick_beats", "url")
@pytest.mark.parametrize("moment", ["before the reply", "after the reply"])
async def test_what_a_gateway_took_and_never_ran_is_run_once_by_another(
    redis_server: RedisServer, redis_client: redis.asyncio.Redis, run_dir: Path, moment: str
) -> None:
    """G09: it dies between the pop and the dispatch; the clients of other gateways get their answers, each once."""
    url = redis_server.url
    worker = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=2))
    await worker.start(f"unix:{run_dir}/w0")
    proxy = RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket)
    async with proxy.running(), member(url, run_dir, "origin") as origin:
        async with member(proxy.url, run_dir, "dying", workers=(worker.address,)) as dying:
            await origin.ready()
            await wait_until(lambda: len(dying.assembly.drivers) == 1, "it drives")
            if moment == "before the reply":
                proxy.loses_replies = True
            else:
                (driver,) = dying.assembly.drivers._drivers.values()
                assert isinstance(driver, Driver)
                driver._claimer._take = lose
            streams = [await origin.submit(prompt_ids=PROMPT) for _ in range(2)]
            held = QueueKeys.of("fake").held + f"dying/{worker.address}"

            async def taken() -> bool:
                stats = await origin.assembly.queues.of("fake").stats()
                return stats.requests == 0 and (proxy.loses_replies or await redis_client.scard(held) == 2)

            await wait_until(taken, "both are taken")
            proxy.loses_replies = True
        await forgets_silent_drivers(origin, redis_client)
        await redis_client.delete(WORKER_PREFIX + worker.address)  # as its lifetime does, some seconds later
        async with member(url, run_dir, "living", workers=(worker.address,)) as living:
            answers = [await read_all(stream, 20) for stream in streams]
            assert [answer.token_ids for answer in answers] == [PROMPT[:8]] * 2
            started = [start.sequence_id for plan in worker.plans for start in plan.starts]
            assert len(started) == len(set(started)) == 2
            assert origin.value("sluicegate_moves_total") == (0 if moment == "before the reply" else 2)
            await wait_until(lambda: is_idle(living), "everything is free again")
    await worker.kill()


async def forgets_silent_drivers(gateway: Member, client: redis.asyncio.Redis) -> None:
    """As ``gateway`` does by itself after a driver's lease, which is some seconds."""
    heartbeats = gateway.assembly.queues.of("fake")._heartbeats
    lease_s, heartbeats._lease_s = heartbeats._lease_s, 0.3

    async def forgotten() -> bool:
        return await client.hlen(QueueKeys.of("fake").beats) == 0

    await wait_until(forgotten, "nobody is left")
    heartbeats._lease_s = lease_s
