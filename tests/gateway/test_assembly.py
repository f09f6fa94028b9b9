"""The machinery of whole gateways: a request in, tokens out, whatever dies on the way."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from admission.classes import BATCH, INTERACTIVE, STANDARD
from admission.estimate import LEAST_SAMPLES
from admission.keys import MODEL_PREFIX, QueueKeys
from admission.presets import PRESETS, SLUICEGATE, KvAdmission
from admission.queue import QueueBounds
from gateway.clock import monotonic_us
from gateway.dispatch import Tokens
from gateway.driver import Driver
from gateway.errors import Reason, Refused
from gateway.forecast import DriverSpeed
from gateway.redis_server import RedisServer
from gateway.streams import Stream
from tests.gateway.small_cluster import Member, is_idle, member, nothing_waits, read_all, request
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript, Text
from workers.wire import Sampling

PROMPT = tuple(range(40, 60))


@pytest_asyncio.fixture
async def worker(run_dir: Path) -> AsyncIterator[WorkerPeer]:
    """A worker with two slots that echoes its prompts."""
    peer = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=2))
    await peer.start(f"unix:{run_dir}/w0")
    yield peer
    peer.gate.set()
    await peer.kill()


def echoed(num_tokens: int) -> tuple[int, ...]:
    return (PROMPT * (num_tokens // len(PROMPT) + 1))[:num_tokens]


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
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as origin,
    ):
        await driver.ready()
        await origin.ready()
        streams = [await origin.submit(max_tokens=40, prompt_ids=PROMPT) for _ in range(4)]
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [(answer.token_ids, answer.finish) for answer in answers] == [(echoed(40), "length")] * 4
        await wait_until(lambda: is_idle(driver), "everything is free again")
        assert origin.value("sluicegate_stale_tokens_total") == 0


async def test_a_broken_relay_link_loses_and_doubles_no_token(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """What was in the broken connection comes again from the journal, and the origin drops what it has."""
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as origin,
    ):
        await driver.ready()
        await origin.ready()
        stream = await origin.submit(max_tokens=400, prompt_ids=PROMPT)
        first = await anext(stream)
        for connection in list(origin.assembly.relay._listener._open.values()):
            connection.abort("the test breaks it")
        rest = await read_all(stream)
        assert (first.token_ids + rest.token_ids, rest.finish) == (echoed(400), "length")


async def test_cancelling_a_waiting_request_takes_it_out_of_the_queue(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Nobody's request must not hold a place in a bounded queue."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        running = [await gateway.submit(prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(gateway), "a driver has both")
        waiting = await gateway.submit(prompt_ids=PROMPT)
        assert not await nothing_waits(gateway)
        waiting.cancel("test")
        waiting.cancel("again: it means nothing")
        await wait_until(lambda: nothing_waits(gateway), "the queue is empty")
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in running] == [echoed(8)] * 2
        assert [tokens async for tokens in waiting] == []


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_cancelling_a_running_request_frees_its_slot(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """A client that goes away costs at most the plans in flight, wherever its driver is."""
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as other,
    ):
        await driver.ready()
        await other.ready()
        origin = {"driver": driver, "origin": other}[origin_name]
        stream = await origin.submit(max_tokens=2000, prompt_ids=PROMPT)
        await anext(stream)
        stream.cancel("the client went away")
        await wait_until(lambda: is_idle(driver), "slot and blocks are free", timeout_s=1.0)
        assert driver.value("sluicegate_output_tokens_total") < 2000


async def test_cancelling_before_the_first_token_frees_the_slot(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """The driver is known to the store only: the withdrawal finds it."""
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as origin,
    ):
        await driver.ready()
        await origin.ready()
        worker.gate.clear()
        stream = await origin.submit(max_tokens=2000, prompt_ids=PROMPT)
        await wait_until(lambda: driver.value("sluicegate_slots_in_use") == 1, "it runs")
        stream.cancel("the client went away")
        await wait_until(lambda: not origin.assembly.acts.is_pending, "the store was asked")
        worker.gate.set()
        await wait_until(lambda: is_idle(driver), "slot and blocks are free", timeout_s=1.0)


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_a_deadline_that_passes_in_the_queue_takes_the_request_out_of_it(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """On time, although nothing else happens; and no slot is ever spent on it."""
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as other,
    ):
        await driver.ready()
        await other.ready()
        worker.gate.clear()
        running = [await driver.submit(prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(driver), "a driver has both")
        origin = {"driver": driver, "origin": other}[origin_name]
        waiting = await origin.submit(prompt_ids=PROMPT, deadline_us=monotonic_us() + 50_000)
        assert not await nothing_waits(driver)
        answer = await read_all(waiting)
        assert (answer.token_ids, answer.error) == ((), Reason.DEADLINE_EXCEEDED)
        await wait_until(lambda: nothing_waits(driver), "the queue is empty", timeout_s=1.0)
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in running] == [echoed(8)] * 2
        assert driver.value("sluicegate_output_tokens_total") == 16


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_a_deadline_that_passes_while_running_frees_the_slot(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """The origin's clock ends it, wherever its driver is; what came before is part of the answer."""
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as other,
    ):
        await driver.ready()
        await other.ready()
        origin = {"driver": driver, "origin": other}[origin_name]
        stream = await origin.submit(max_tokens=2000, prompt_ids=PROMPT, deadline_us=monotonic_us() + 100_000)
        first = await anext(stream)
        worker.gate.clear()
        rest = await read_all(stream)
        tokens = first.token_ids + rest.token_ids
        assert (tokens, rest.error) == (echoed(len(tokens)), Reason.DEADLINE_EXCEEDED)
        worker.gate.set()
        await wait_until(lambda: is_idle(driver), "slot and blocks are free", timeout_s=1.0)


async def test_a_wait_beyond_the_deadline_is_refused_once_the_line_has_been_measured(
    url: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cannot be served in time hears it now. Before anything is measured, everybody is let in."""
    for name, value in [
        ("heartbeat.BEAT_S", 0.02),
        ("heartbeat.SAMPLE_S", 0.01),
        ("holdings.RENEW_S", 0.02),
        ("line_speed.LEAST_BUSY_US", 100_000),
        ("forecast.LEAST_SCORED_S", 0.001),
    ]:
        monkeypatch.setattr(f"gateway.{name}", value)
    peer = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=1))
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        forecast = gateway.assembly.forecast
        hopeless = {"max_tokens": 400, "prompt_ids": PROMPT}
        streams = [await gateway.submit(**hopeless) for _ in range(20)]
        early = await gateway.submit(deadline_us=monotonic_us() + 20_000, **hopeless)
        await wait_until(lambda: forecast.wait_s("fake", 1) is not None, "the line is measured", timeout_s=20.0)
        with pytest.raises(Refused) as refused:
            await gateway.submit(deadline_us=monotonic_us() + 20_000, **hopeless)
        assert refused.value.reason is Reason.DEADLINE_UNREACHABLE
        assert refused.value.retry_after_s is not None
        assert (await read_all(early)).error is Reason.DEADLINE_EXCEEDED
        late = await gateway.submit(max_tokens=4, prompt_ids=PROMPT)
        assert {(await read_all(stream)).finish for stream in streams} == {"length"}
        assert (await read_all(late)).finish == "length"
        assert gateway.value("sluicegate_wait_ratio_count") >= 1
    await peer.kill()


async def test_whenever_deadlines_pass_each_request_ends_once_and_nothing_is_left(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any
) -> None:
    """Offered, handed, claimed, running, finishing: an end may cross any of these, on either side of the relay."""
    moments = random.Random(7)
    async with (
        member(url, run_dir, "driver", workers=(worker.address,)) as driver,
        member(url, run_dir, "origin") as origin,
    ):
        await driver.ready()
        await origin.ready()

        async def ask(gateway: Member) -> Tokens:
            left_us = moments.randrange(1_000, 400_000)
            stream = await gateway.submit(max_tokens=60, prompt_ids=PROMPT, deadline_us=monotonic_us() + left_us)
            return await read_all(stream)

        async def store_is_empty() -> bool:
            return bool(await redis_client.hlen(QueueKeys.of("fake").entries) == 0)

        asking = [asyncio.create_task(ask(moments.choice((driver, origin)))) for _ in range(60)]
        answers = await asyncio.gather(*asking)
        assert all(answer.token_ids == echoed(len(answer.token_ids)) for answer in answers)
        ends = {(answer.finish, answer.error) for answer in answers}
        assert ends == {("length", None), (None, Reason.DEADLINE_EXCEEDED)}
        await wait_until(lambda: is_idle(driver), "nothing runs and nothing waits")
        assert (len(driver.assembly.streams), len(origin.assembly.streams)) == (0, 0)
        await wait_until(store_is_empty, "the store knows none of them any more")


async def test_a_deadline_that_is_over_is_not_offered(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Time that tokenising took counts, and the store must not hear of what nobody waits for."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        with pytest.raises(Refused) as refused:
            await gateway.submit(deadline_us=monotonic_us())
        assert refused.value.reason is Reason.DEADLINE_EXCEEDED
        assert len(gateway.assembly.streams) == 0
        assert gateway.value("sluicegate_iterations_total") == 0


async def test_a_killed_worker_ends_its_streams_with_a_typed_error_and_is_driven_again(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Where requests may not move: never a half answer that looks whole, and nothing is left of it afterwards."""
    async with member(url, run_dir, workers=(worker.address,), max_moves=0) as gateway:
        await gateway.ready()
        streams = [await gateway.submit(max_tokens=2000, prompt_ids=PROMPT) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        await worker.kill()
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [answer.error for answer in answers] == [Reason.WORKER_LOST] * 2
        await wait_until(lambda: is_idle(gateway), "nothing is held")
        await worker.restart()
        await wait_until(lambda: len(gateway.assembly.drivers) == 1, "the worker is driven again")
        assert (await read_all(await gateway.submit(prompt_ids=PROMPT))).token_ids == echoed(8)
        assert worker.epochs == sorted(set(worker.epochs)), "every connection has a higher epoch"


async def test_a_worker_that_makes_no_progress_counts_as_lost(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """A hung process keeps its socket open for ever."""
    async with member(url, run_dir, workers=(worker.address,), progress_timeout_s=0.2) as gateway:
        await gateway.ready()
        worker.gate.clear()
        stream = await gateway.submit(prompt_ids=PROMPT)
        await wait_until(lambda: len(worker.epochs) == 2, "the worker is driven anew")
        worker.gate.set()
        assert (await read_all(stream)).token_ids == echoed(8)


async def test_a_full_queue_refuses_with_a_time_to_come_back(
    url: str, run_dir: Path, worker: WorkerPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Explicit rejection: early, and with the time that what waits will take."""
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 60)
    async with member(url, run_dir, workers=(worker.address,), bounds=QueueBounds(max_requests=1)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        accepted = [await gateway.submit(prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(gateway), "a driver has both")
        accepted.append(await gateway.submit(prompt_ids=PROMPT))
        gateway.assembly.forecast.take_speeds([DriverSpeed(model="fake", tokens_per_s=2.0)])
        with pytest.raises(Refused) as refused:
            await gateway.submit(prompt_ids=PROMPT)
        assert refused.value.reason is Reason.QUEUE_FULL
        least_s = (len(PROMPT) + 8) / 2.0
        assert refused.value.retry_after_s is not None
        assert least_s <= refused.value.retry_after_s <= 1.25 * least_s
        await wait_until(lambda: gateway.value("sluicegate_queue_requests") == 1, "the queue is seen")
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in accepted] == [echoed(8)] * 3
        assert len(gateway.assembly.streams) == 0


async def test_what_recent_answers_took_is_what_the_queue_counts(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Clients allow far more output than they get: by that, a token bound would be full of air."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        for _ in range(LEAST_SAMPLES):
            await read_all(await gateway.submit(max_tokens=4, prompt_ids=PROMPT))
        asked = request(max_tokens=500, prompt_ids=PROMPT)
        (entry,) = gateway.assembly.machinery._entries(asked)
        assert entry.tokens == len(PROMPT) + 4
        answer = await read_all(await gateway.submit(max_tokens=500, prompt_ids=PROMPT))
        assert answer.token_ids == echoed(500), "what outgrows it is served all the same"


SHEDDING = (replace(INTERACTIVE, sheds=True), STANDARD, replace(BATCH, sheddable=True))


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_a_better_class_displaces_what_waits_and_its_client_hears_of_it(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """Whichever gateway holds that client: it must not wait for a place that is gone."""
    options: dict[str, Any] = {"bounds": QueueBounds(max_requests=1), "classes": SHEDDING}
    async with (
        member(url, run_dir, "driver", workers=(worker.address,), **options) as driver,
        member(url, run_dir, "origin", **options) as other,
    ):
        await driver.ready()
        await other.ready()
        worker.gate.clear()
        accepted = [await driver.submit(class_name="interactive", prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: nothing_waits(driver), "a driver has both")
        waiting: list[Stream] = []

        async def one_waits() -> bool:
            if await nothing_waits(driver):
                waiting.append(await {"driver": driver, "origin": other}[origin_name].submit(class_name="batch"))
            return not await nothing_waits(driver)

        await wait_until(one_waits, "a lesser one waits")
        accepted.append(await driver.submit(class_name="interactive", prompt_ids=PROMPT))
        answer = await read_all(waiting[-1])
        assert (answer.token_ids, answer.error) == ((), Reason.SHED)
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in accepted] == [echoed(8)] * 3


async def test_a_class_that_may_not_wait_is_refused_by_its_own_name(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any
) -> None:
    """The queue has room, the class has none: its client must know which of the two was full."""
    classes = (INTERACTIVE, STANDARD, replace(BATCH, max_waiting=0))
    async with member(url, run_dir, workers=(worker.address,), classes=classes) as gateway:
        await gateway.ready()
        wants = QueueKeys.of("fake").wants
        await wait_until(lambda: redis_client.hlen(wants), "the driver has said what it wants")
        assert (await read_all(await gateway.submit(class_name="batch"))).finish == "length", "it meets a free slot"
        worker.gate.clear()
        accepted = [await gateway.submit(prompt_ids=PROMPT) for _ in range(4)]
        with pytest.raises(Refused) as refused:
            await gateway.submit(class_name="batch")
        assert refused.value.reason is Reason.CLASS_FULL
        worker.gate.set()
        assert [(await read_all(stream)).token_ids for stream in accepted] == [echoed(8)] * 4


async def test_an_unknown_model_is_told_from_one_without_a_worker(
    redis_client: Any, url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """404 is the client's mistake; 503 is ours, and passes."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        with pytest.raises(Refused) as refused:
            await gateway.submit(model="nobody")
        assert refused.value.reason is Reason.UNKNOWN_MODEL
        await worker.kill()
        await wait_until(lambda: len(gateway.assembly.drivers) == 0, "the worker is lost")
        await redis_client.delete(MODEL_PREFIX + "fake")  # as its lifetime does, a little later
        await wait_until(lambda: not gateway.assembly.view.serves("fake"), "nobody serves it")
        with pytest.raises(Refused) as refused:
            await gateway.submit()
        assert refused.value.reason is Reason.NO_WORKER
        assert not gateway.assembly.machinery.readiness().ready


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


async def test_sequences_paused_for_memory_continue_where_they_were(url: str, run_dir: Path) -> None:
    """A pool that is too small for all of them makes some wait, not fail."""
    greedy = replace(SLUICEGATE, kv_admission=KvAdmission.PROMPT, watermark_percent=0)  # starts whatever fits now
    peer = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=4, blocks=16, block_size=4))
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
        await wait_until(lambda: is_idle(gateway), "everything is free again")
    await peer.kill()


@pytest.mark.parametrize("host_blocks", [2, 64])
async def test_sequences_paused_for_memory_come_back_from_host_memory(
    url: str, run_dir: Path, host_blocks: int
) -> None:
    """Where the worker has some; what finds no room there is computed again, and no token is lost either way."""
    greedy = replace(SLUICEGATE, kv_admission=KvAdmission.PROMPT, watermark_percent=0)
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
        assert gateway.value("sluicegate_swapped_tokens_total") > 0 or host_blocks == 2
        await wait_until(lambda: is_idle(gateway), "everything is free again")
    await peer.kill()


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


async def test_a_frozen_store_leaves_running_streams_alone_and_refuses_new_ones(
    own_redis: RedisServer, run_dir: Path, worker: WorkerPeer
) -> None:
    """Running streams do not depend on Redis; new work is told within about a second, and all is well afterwards."""
    async with member(own_redis.url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        running = await gateway.submit(max_tokens=300, prompt_ids=PROMPT)
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 1, "it runs")
        os.kill(own_redis.pid, signal.SIGSTOP)
        try:
            started = asyncio.get_running_loop().time()
            with pytest.raises(Refused) as refused:
                await gateway.submit(prompt_ids=PROMPT)
            assert refused.value.reason is Reason.STORE_UNAVAILABLE
            assert asyncio.get_running_loop().time() - started < 2.0
            worker.gate.set()
            assert (await read_all(running)).token_ids == echoed(300)
            await wait_until(lambda: not gateway.assembly.machinery.readiness().ready, "the gateway is unready")
        finally:
            os.kill(own_redis.pid, signal.SIGCONT)
        await gateway.ready()
        assert (await read_all(await gateway.submit(prompt_ids=PROMPT))).token_ids == echoed(8)
        await wait_until(lambda: is_idle(gateway), "nothing leaks")


async def test_what_waits_in_a_store_that_loses_its_data_is_offered_again(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever claim it: without this its client waits for ever. What runs is not touched."""
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 0.02)
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        running = [await gateway.submit(max_tokens=1500, prompt_ids=PROMPT) for _ in range(2)]
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 2, "both slots are taken")
        await wait_until(lambda: all(stream.next_position for stream in running), "both have begun")
        worker.gate.clear()
        waiting = await gateway.submit(max_tokens=8, prompt_ids=PROMPT)
        await redis_client.flushall()
        await wait_until(lambda: waiting.num_moves == 1, "it is offered again")
        worker.gate.set()
        assert (await read_all(waiting)).token_ids == echoed(8)
        assert [stream.num_moves for stream in running] == [0, 0]


async def test_a_long_prompt_that_runs_when_the_store_loses_its_data_is_left_alone(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first token takes longer than any patience with what waits, and its driver is here."""
    monkeypatch.setattr("gateway.heartbeat.BEAT_S", 0.02)
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        worker.gate.clear()
        stream = await gateway.submit(max_tokens=8, prompt_ids=PROMPT)
        await wait_until(lambda: gateway.value("sluicegate_slots_in_use") == 1, "it runs")
        waiting = [await gateway.submit(max_tokens=8, prompt_ids=PROMPT) for _ in range(2)]
        await redis_client.flushall()
        await wait_until(lambda: waiting[-1].num_moves == 1, "as long as it takes to give up what waits")
        worker.gate.set()
        assert {(await read_all(each)).finish for each in (stream, *waiting)} == {"length"}
        assert stream.num_moves == 0


async def test_a_gateway_that_uses_few_blocks_refuses_what_they_cannot_hold(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Accepted, it would never start: no driver ever has so much room."""
    async with member(url, run_dir, workers=(worker.address,), kv_blocks=4) as gateway:
        await gateway.ready()
        assert [card.context_length for card in gateway.assembly.machinery.models()] == [4 * 16]
        with pytest.raises(Refused) as refused:
            await gateway.submit(prompt_ids=PROMPT, max_tokens=4 * 16)
        assert refused.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED


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


@pytest.mark.usefixtures("redis_client")
async def test_a_ledger_that_does_not_balance_is_found_when_idle_and_begun_anew(
    redis_server: RedisServer, run_dir: Path, worker: WorkerPeer
) -> None:
    """A promise that leaks is a fault of ours: better loud, with an empty worker, than slowly less and less memory."""
    async with member(redis_server.url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        (driver,) = gateway.assembly.drivers._drivers.values()
        assert isinstance(driver, Driver)
        driver._scheduler._ledger._expected += 1
        assert (await read_all(await gateway.submit(max_tokens=4))).finish == "length"
        await wait_until(lambda: len(worker.epochs) == 2, "the worker is driven anew")
        assert (await read_all(await gateway.submit(max_tokens=4))).finish == "length"
