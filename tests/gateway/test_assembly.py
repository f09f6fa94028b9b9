"""The machinery of whole gateways: a request in, tokens out, through any gateway and any driver."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admission.presets import PRESETS
from tests.gateway.small_cluster import PROMPT, driver_and_origin, echoed, is_idle, member, nothing_waits, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript, Text
from workers.wire import Sampling


async def test_a_request_gives_every_token_once_and_in_order(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """The spine: queue, claim, plan, report, stream."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        answer = await read_all(await gateway.submit(max_tokens=30, prompt_ids=PROMPT))
        assert (answer.token_ids, answer.finish) == (echoed(30), "length")
        await wait_until(lambda: is_idle(gateway), "everything is free again")
        assert gateway.value("sluicegate_prompt_tokens_total") == len(PROMPT)
        assert gateway.value("sluicegate_output_tokens_total") == 30


async def test_an_eos_ends_the_output_and_is_no_part_of_it(url: str, run_dir: Path) -> None:
    """A client never sees the token that only says that there are no more."""
    peer = WorkerPeer(FakeScript(output=Text(kind="text", text="Hello there")))
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        answer = await read_all(await gateway.submit(max_tokens=100, sampling=Sampling()))
        assert answer.finish == "stop"
        assert answer.token_ids
        assert not set(answer.token_ids) & set(peer.executor.card.eos_ids)
    await peer.kill()


async def test_requests_beyond_the_slots_wait_and_all_complete(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Slots are refilled from the queue, and nobody is lost or served twice."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        streams = [await gateway.submit(max_tokens=5 + n % 7, prompt_ids=PROMPT) for n in range(20)]
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [answer.token_ids for answer in answers] == [echoed(5 + n % 7) for n in range(20)]
        await wait_until(lambda: is_idle(gateway), "everything is free again")
        assert gateway.value("sluicegate_stale_tokens_total") == 0


async def test_two_plans_are_with_the_worker_at_once(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """The second hides the gateway's own time from the device."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        stream = await gateway.submit(prompt_ids=PROMPT)
        await wait_until(lambda: len(worker.plans) - worker.executed == 2, "two plans are in flight")
        worker.gate.set()
        assert (await read_all(stream)).token_ids == echoed(8)


async def test_tokens_flow_from_a_driver_in_one_gateway_to_an_origin_in_another(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Any gateway accepts a request, any driver serves it."""
    async with driver_and_origin(url, run_dir, worker.address) as (driver, origin):
        streams = [await origin.submit(max_tokens=40, prompt_ids=PROMPT) for _ in range(4)]
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [(answer.token_ids, answer.finish) for answer in answers] == [(echoed(40), "length")] * 4
        await wait_until(lambda: is_idle(driver), "everything is free again")
        assert origin.value("sluicegate_stale_tokens_total") == 0


async def test_a_broken_relay_link_loses_and_doubles_no_token(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """What was in the broken connection comes again from the journal, and the origin drops what it has."""
    async with driver_and_origin(url, run_dir, worker.address) as (_, origin):
        stream = await origin.submit(max_tokens=400, prompt_ids=PROMPT)
        first = await anext(stream)
        for connection in list(origin.assembly.relay._listener._open.values()):
            connection.abort("the test breaks it")
        rest = await read_all(stream)
        assert (first.token_ids + rest.token_ids, rest.finish) == (echoed(400), "length")


@pytest.mark.parametrize("name", PRESETS)
async def test_every_preset_serves_more_than_fits_at_once(url: str, run_dir: Path, name: str) -> None:
    """Each rule must get along with claims and reports that come when they come, and with two plans in flight."""
    peer = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=3, blocks=16, block_size=4))
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,), preset=PRESETS[name]) as gateway:
        await gateway.ready()
        classes = ("batch", "standard", "interactive", "standard", "batch", "interactive", "standard")
        streams = [await gateway.submit(max_tokens=24, prompt_ids=PROMPT[:4], class_name=c) for c in classes]
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [(answer.token_ids, answer.finish) for answer in answers] == [(PROMPT[:4] * 6, "length")] * 7
        await wait_until(lambda: is_idle(gateway), "everything is free again")
    await peer.kill()


async def test_a_gathered_batch_starts_when_its_size_is_reached(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """The sizes and the delay that are set must reach the scheduler of each worker."""
    gathering = {"preset": PRESETS["request-dynamic"], "preferred_sizes": (2,), "max_queue_delay_us": 60_000_000}
    async with member(url, run_dir, workers=(worker.address,), **gathering) as gateway:
        await gateway.ready()
        first = await gateway.submit(prompt_ids=PROMPT)
        await wait_until(lambda: nothing_waits(gateway), "the first is claimed")
        assert gateway.value("sluicegate_slots_in_use") == 0
        second = await gateway.submit(prompt_ids=PROMPT)
        assert {(await read_all(stream)).finish for stream in (first, second)} == {"length"}
