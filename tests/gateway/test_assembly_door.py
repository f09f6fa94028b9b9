"""Who is let in, and what those hear who are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admission.classes import BATCH, INTERACTIVE, STANDARD
from admission.estimate import LEAST_SAMPLES
from admission.keys import MODEL_PREFIX, QueueKeys
from admission.queue import QueueBounds
from gateway.clock import monotonic_us
from gateway.errors import Reason, Refused
from gateway.forecast import LEAST_SPREAD_S, DriverSpeed
from gateway.stream import Stream
from tests.gateway.small_cluster import PROMPT, driver_and_origin, echoed, member, nothing_waits, read_all, request
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript


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
        assert least_s <= refused.value.retry_after_s <= least_s + LEAST_SPREAD_S
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
    async with driver_and_origin(url, run_dir, worker.address, **options) as (driver, other):
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
