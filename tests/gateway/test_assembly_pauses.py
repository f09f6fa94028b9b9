"""Sequences that are preempted for a slot or for memory, and go on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis.asyncio

from admission.keys import QueueKeys
from admission.presets import SLUICEGATE, KvAdmission
from admission.redis_queue import RedisQueue
from gateway.frames import FrameConnection
from gateway.redis_server import RedisServer
from gateway.store_acts import StoreActs
from tests.admission.redis_proxy import RedisProxy
from tests.gateway.small_cluster import PROMPT, echoed, is_idle, member, nothing_waits, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript
from workers.wire import ReportMessage


async def test_a_better_class_takes_the_slot_of_a_lesser_one_which_then_continues(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """The exchange: the victim waits with its tokens, comes back, and goes on where it was."""
    async with member(url, run_dir, workers=(worker.address,), max_slots=1) as gateway:
        await gateway.ready()
        batch = await gateway.submit(class_name="batch", max_tokens=600, prompt_ids=PROMPT)
        first = await anext(batch)
        urgent = await read_all(await gateway.submit(class_name="interactive", max_tokens=20, prompt_ids=PROMPT))
        assert (urgent.token_ids, urgent.finish) == (echoed(20), "length")
        rest = await read_all(batch)
        assert (first.token_ids + rest.token_ids, rest.finish) == (echoed(600), "length")
        assert gateway.value("sluicegate_preemptions_total", reason="slot") == 1
        assert gateway.value("sluicegate_stale_tokens_total") == 0
        await wait_until(lambda: is_idle(gateway), "everything is free again")


@pytest.mark.parametrize("host_blocks", [0, 2, 64])
async def test_sequences_paused_for_memory_continue_where_they_were(url: str, run_dir: Path, host_blocks: int) -> None:
    """A pool that is too small for all of them makes some wait, not fail, and no token is lost.

    They come back from host memory, where the worker has some; what finds no room there is computed again.
    """
    greedy = replace(SLUICEGATE, kv_admission=KvAdmission.PROMPT, watermark_percent=0)  # starts whatever fits now
    script = FakeScript(output=Echo(kind="echo"), slots=4, blocks=16, block_size=4, host_blocks=host_blocks)
    peer = WorkerPeer(script)
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,), preset=greedy) as gateway:
        await gateway.ready()
        peer.gate.clear()
        streams = [await gateway.submit(max_tokens=24, prompt_ids=PROMPT[:4]) for _ in range(4)]
        await wait_until(lambda: nothing_waits(gateway), "all are claimed")
        peer.gate.set()
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [(answer.token_ids, answer.finish) for answer in answers] == [(PROMPT[:4] * 6, "length")] * 4
        assert gateway.value("sluicegate_preemptions_total", reason="kv") > 0
        swapped = gateway.value("sluicegate_swapped_tokens_total")
        assert swapped > 0 if host_blocks == 64 else host_blocks > 0 or swapped == 0
        await wait_until(lambda: is_idle(gateway), "everything is free again")
    await peer.kill()


async def test_what_ended_while_an_exchange_put_it_back_is_not_computed_again(
    redis_server: RedisServer,
    redis_client: redis.asyncio.Redis,
    run_dir: Path,
    worker: WorkerPeer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Taking it out of the line waits its turn at Redis, and the next claim may come first."""
    withdraw = StoreActs.withdraw
    held_back: list[tuple[StoreActs, RedisQueue, str, Callable[[str, str], None]]] = []
    monkeypatch.setattr(StoreActs, "withdraw", lambda *act: held_back.append(act))
    report = worker.report
    late: list[tuple[FrameConnection, ReportMessage]] = []

    def report_late(connection: FrameConnection, message: ReportMessage) -> None:
        if message.finished and not late:
            late.append((connection, message))
        else:
            report(connection, message)

    monkeypatch.setattr(worker, "report", report_late)
    proxy = RedisProxy(socket=run_dir / "proxy.sock", redis_socket=redis_server.socket)
    async with proxy.running(), member(proxy.url, run_dir, workers=(worker.address,), max_slots=1) as gateway:
        await gateway.ready()
        batch = await gateway.submit(class_name="batch", max_tokens=100, prompt_ids=PROMPT)
        first = await anext(batch)
        worker.gate.clear()
        proxy.delay_s = 0.3
        urgent = asyncio.create_task(gateway.submit(class_name="interactive", max_tokens=20, prompt_ids=PROMPT))

        async def is_in_line() -> bool:
            return bool(await redis_client.keys(f"{QueueKeys.of('fake').paused}*"))

        async def is_claimed_again() -> bool:
            return not await is_in_line()

        await wait_until(is_in_line, "the exchange has been made, and is on its way here")
        worker.gate.set()
        await wait_until(
            lambda: bool(late) and gateway.value("sluicegate_preemptions_total", reason="slot") == 1,
            "the driver knows of the exchange while the last token is on its way",
        )
        report(*late[0])
        assert first.token_ids + (await read_all(batch)).token_ids == echoed(100)
        proxy.delay_s = 0.0
        assert (await read_all(await urgent)).token_ids == echoed(20)
        await wait_until(is_claimed_again, "nobody has taken it out of the line")
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 0, "it is let go")
        assert gateway.value("sluicegate_output_tokens_total") == 100 + 20
        for act in held_back:
            withdraw(*act)
        await wait_until(lambda: is_idle(gateway), "everything is free again")
