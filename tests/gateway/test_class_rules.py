"""What classes may do, live: real gateways, a real Redis, and a scripted worker that waits for the test's word."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from admission.classes import BATCH, INTERACTIVE, STANDARD
from admission.keys import QueueKeys
from admission.queue import QueueBounds
from gateway.dispatch import Tokens
from gateway.errors import Reason, Refused
from gateway.stream import Stream
from tests.gateway.small_cluster import Member, driver_and_origin, member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


async def fill(gateway: Member, worker: WorkerPeer, class_name: str) -> list[Stream]:
    """Both slots promised to a class, the worker halted."""
    await gateway.ready()
    await wait_until(lambda: a_want_stands(gateway), "the driver has said what it wants")
    worker.gate.clear()
    prompts = (tuple(range(5, 25)), tuple(range(30, 50)))  # different ones: neither waits for the other's blocks
    streams = [await gateway.submit(class_name=class_name, prompt_ids=prompt) for prompt in prompts]
    await wait_until(lambda: is_claimed(gateway), "a driver has both")
    return streams


async def a_want_stands(gateway: Member) -> bool:
    return bool(await gateway.assembly.directory._client.exists(QueueKeys.of("fake").wants))


async def is_claimed(gateway: Member) -> bool:
    return (await gateway.assembly.queues.of("fake").stats()).requests == 0


async def ends(*streams: Stream) -> list[str]:
    return [_end(await read_all(stream)) for stream in streams]


def _end(answer: Tokens) -> str:
    return answer.finish or (answer.error or Reason.INTERNAL_ERROR).value


async def test_a_full_queue_sheds_the_worst_of_a_lower_class_wherever_its_client_is(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Explicitly: the displaced one gets its own 429, with a time to come back, through its own gateway."""
    bounds = QueueBounds(max_requests=2)
    async with driver_and_origin(url, run_dir, worker.address, bounds=bounds) as (gateway, other):
        running = await fill(gateway, worker, "interactive")
        first, second = [await other.submit(class_name="batch") for _ in range(2)]
        better = await gateway.submit(class_name="standard")
        shed = await read_all(second)
        assert (shed.error, shed.token_ids) == (Reason.SHED, ())
        with pytest.raises(Refused) as refused:
            await other.submit(class_name="batch")
        assert refused.value.reason is Reason.QUEUE_FULL, "what may be shed does not shed"
        worker.gate.set()
        assert await ends(*running, first, better) == ["length"] * 4


async def test_a_class_without_a_queue_is_served_at_once_or_refused(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """For whoever would rather ask elsewhere than wait."""
    classes = (INTERACTIVE, replace(STANDARD, max_waiting=0, preempts=False), BATCH)
    async with member(url, run_dir, workers=(worker.address,), classes=classes) as gateway:
        running = await fill(gateway, worker, "standard")
        with pytest.raises(Refused) as refused:
            await gateway.submit(class_name="standard")
        assert refused.value.reason is Reason.CLASS_FULL
        waiting = await gateway.submit(class_name="batch")
        worker.gate.set()
        assert await ends(*running, waiting) == ["length"] * 3


async def test_classes_that_may_not_preempt_or_be_preempted_wait_and_run_on(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Preemption is a policy of the operator's, class by class."""
    for classes in (
        (replace(INTERACTIVE, preempts=False), STANDARD, BATCH),
        (INTERACTIVE, STANDARD, replace(BATCH, preemptible=False)),
    ):
        async with member(url, run_dir, workers=(worker.address,), classes=classes) as gateway:
            running = await fill(gateway, worker, "batch")
            urgent = await gateway.submit(class_name="interactive")
            worker.gate.set()
            assert await ends(*running, urgent) == ["length"] * 3
            assert gateway.value("sluicegate_preemptions_total", reason="slot") == 0


async def test_a_class_below_its_share_goes_first_when_a_slot_is_free(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Lent while it was away, given back as soon as something ends: whatever waits in better classes."""
    classes = (replace(INTERACTIVE, preempts=False), STANDARD, replace(BATCH, share_percent=50))
    async with member(url, run_dir, workers=(worker.address,), classes=classes) as gateway:
        running = await fill(gateway, worker, "interactive")
        better = [await gateway.submit(class_name="interactive") for _ in range(3)]
        guaranteed = await gateway.submit(class_name="batch")
        ended: list[str] = []

        async def read(stream: Stream, name: str) -> None:
            assert _end(await read_all(stream)) == "length"
            ended.append(name)

        worker.gate.set()
        async with asyncio.TaskGroup() as group:
            for stream, name in ((guaranteed, "batch"), *((stream, "interactive") for stream in (*running, *better))):
                group.create_task(read(stream, name))
        assert sorted(ended) == ["batch", *["interactive"] * 5]
        assert ended.index("batch") <= 3, "it took one of the first two slots that were free"
