"""Requests that end in every way there is, at random, and the books of the gateway afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from enum import StrEnum

from admission.presets import SLUICEGATE, KvAdmission
from gateway.clock import monotonic_us
from gateway.driver import Driver
from gateway.errors import Reason, Refused
from tests.gateway.front_door import Door
from tests.gateway.small_cluster import read_all
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript

GREEDY = replace(SLUICEGATE, kv_admission=KvAdmission.PROMPT, watermark_percent=0)
"""Starts whatever fits now, so that memory runs out often."""

SMALL = FakeScript(output=Echo(kind="echo"), slots=8, blocks=64, block_size=4)
"""A pool that is too small for all."""

OVER = (Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_EXCEEDED, Reason.STORE_UNAVAILABLE)
"""A deadline of a millisecond may be over before its request is in the queue, and to a machine that stalls for a second
Redis is away for as long. Nothing of these may be left either.
"""

CLASSES = ("interactive", "standard", "batch")
CONCURRENT = 24


class _Way(StrEnum):
    FINISH = "finish"
    LEAVE_EARLY = "leave early"
    LEAVE_RUNNING = "leave running"
    EXPIRE = "expire"
    STOP = "stop"


async def soak(served: Door, *, num_requests: int, seed: int) -> Counter[str]:
    """Send ``num_requests``, then require that everything came back. How many ended each way, and were displaced.

    Under ``GREEDY`` over ``SMALL``, memory and slots are taken from some for others.
    """
    choose = random.Random(seed)
    told: Counter[str] = Counter()
    plans = iter([(choose.choice(list(_Way)), random.Random(choose.random())) for _ in range(num_requests)])

    async def work() -> None:
        for way, chance in plans:
            try:
                await _one(served, way, chance)
            except Refused as refused:
                if refused.reason not in OVER:
                    raise
            told[way] += 1

    await asyncio.gather(*[work() for _ in range(CONCURRENT)])
    await served.idle()
    # What was cancelled before it took a slot is let go in the driver's next turn, and no gauge has ever counted it.
    await wait_until(lambda: not _driver(served)._book.records, "the driver has let all go")
    _check_books(served)
    await _fill_to_the_last_block(served)
    told["paused for a slot"] += int(served.gateway.value("sluicegate_preemptions_total", reason="slot"))
    told["paused for memory"] += int(served.gateway.value("sluicegate_preemptions_total", reason="kv"))
    return told


async def _one(served: Door, way: _Way, chance: random.Random) -> None:
    prompt = tuple(chance.randrange(40, 90) for _ in range(chance.randint(1, 40)))
    num_tokens = chance.randint(10, 80)
    stream = await served.gateway.submit(
        class_name=chance.choice(CLASSES),
        prompt_ids=prompt,
        max_tokens=num_tokens,
        deadline_us=monotonic_us() + chance.randint(1_000, 60_000) if way is _Way.EXPIRE else None,
    )
    if way in (_Way.LEAVE_RUNNING, _Way.STOP):
        tokens = (await anext(stream)).token_ids
        assert tokens == (prompt * num_tokens)[: len(tokens)]
    match way:
        case _Way.FINISH:
            assert (await read_all(stream, 60)).token_ids == (prompt * num_tokens)[:num_tokens]
        case _Way.EXPIRE:
            await read_all(stream, 60)
        case _Way.STOP:
            stream.complete()
        case _:
            await asyncio.sleep(chance.random() * 0.01)
            stream.cancel("the client left")


def _check_books(served: Door) -> None:
    driver = _driver(served)
    driver._scheduler.check()
    ledger = driver._scheduler._ledger
    assert (ledger.in_use, ledger.pool.num_free) == (0, served.worker.executor.kv_blocks)
    assert not driver._book.records
    assert len(served.gateway.assembly.streams) == 0


async def _fill_to_the_last_block(served: Door) -> None:
    """One prompt as long as the pool; the token that it gives is never written."""
    executor = served.worker.executor
    length = executor.kv_blocks * executor.block_size
    served.worker.gate.clear()
    stream = await served.gateway.submit(prompt_ids=(50,) * (length - 1), max_tokens=1)
    await wait_until(
        lambda: served.gateway.value("sluicegate_kv_blocks_in_use") == executor.kv_blocks,
        "every block is in use",
        timeout_s=30.0,
    )
    served.worker.gate.set()
    assert (await read_all(stream)).finish == "length"
    await served.idle()


def _driver(served: Door) -> Driver:
    (driver,) = served.gateway.assembly.drivers._drivers.values()
    assert isinstance(driver, Driver)
    return driver
