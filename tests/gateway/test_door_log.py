"""What a gateway does at the shared queue is recorded, and several gateways' logs are of one queue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis.asyncio

from admission.queue import Offered, QueueBounds
from admission.record.entries import Given, LogEntry, OfferMade, Settled
from admission.record.waiting import Act
from admission.standing import WaitingOrderName
from gateway.clock import monotonic_us
from gateway.door_log import DoorLog
from gateway.errors import Refused
from gateway.log_files import read_logs
from gateway.recording import Recorder
from tests.gateway.small_cluster import choices, is_idle, member, nothing_waits, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


def acts_in(folder: Path) -> list[Act]:
    doors = read_logs([folder]).doors
    entries: list[LogEntry] = [entry for door in doors for segment in door for entry in segment.entries]
    return sorted([entry for entry in entries if isinstance(entry, Act)], key=lambda act: act.act)


def test_a_door_at_which_nothing_happens_has_a_log(tmp_path: Path) -> None:
    """Else nobody could tell it from one that is lost, with all that was offered there."""
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us)
    DoorLog(
        recorder,
        gateway_id="g0",
        classes=(),
        bounds=QueueBounds(max_requests=1),
        waiting_order=WaitingOrderName.AGING,
        clock=monotonic_us,
    )
    recorder.close()
    ((segment,),) = read_logs([tmp_path]).doors
    assert (segment.opened.gateway_id, segment.is_last) == ("g0", True)


async def test_acts_of_two_gateways_have_numbers_of_one_row(
    url: str, run_dir: Path, worker: WorkerPeer, tmp_path: Path
) -> None:
    """One offers and the other drives: only together do they tell what happened."""
    recorders = [Recorder(tmp_path, gateway_id=f"g{n}", started="run", clock=monotonic_us) for n in range(2)]
    async with member(url, run_dir, "g0", workers=(worker.address,), recorder=recorders[0]) as driving:
        await driving.ready()
        async with member(url, run_dir, "g1", recorder=recorders[1]) as other:
            await other.ready()
            streams = await other.submit_all(*choices(3), request_id="abc")
            for stream in streams:
                await read_all(stream)
            await wait_until(lambda: is_idle(driving), "everything is given back")
    for recorder in recorders:
        await asyncio.to_thread(recorder.close)
    acts = acts_in(tmp_path)
    offers = [act for act in acts if isinstance(act, OfferMade)]
    assert [(offer.request_id, offer.choice) for offer in offers] == [("abc", 0), ("abc", 1), ("abc", 2)]
    assert {offer.act for offer in offers} == {offers[0].act}, "all or none: one act"
    assert offers[0].prompt_tokens == 20
    names = {offer.sequence_id for offer in offers}
    for kind in (Given, Settled):
        later = [act for act in acts if isinstance(act, kind)]
        assert {name for act in later for name in act.sequence_ids} == names
        assert all(act.act > offers[0].act for act in later)


async def test_numbers_go_on_above_the_old_ones_when_redis_has_lost_its_data(
    url: str, run_dir: Path, worker: WorkerPeer, tmp_path: Path, redis_client: redis.asyncio.Redis
) -> None:
    """Else what came after would be told as if it had come before."""
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us)
    async with member(url, run_dir, workers=(worker.address,), recorder=recorder) as gateway:
        await gateway.ready()
        await read_all(await gateway.submit(request_id="before"))
        await wait_until(lambda: is_idle(gateway), "everything is given back")
        await redis_client.flushall()
        await read_all(await gateway.submit(request_id="after"))
        await wait_until(lambda: is_idle(gateway), "everything is given back")
    await asyncio.to_thread(recorder.close)
    offers = [act for act in acts_in(tmp_path) if isinstance(act, OfferMade)]
    assert [offer.request_id for offer in offers] == ["before", "after"]


async def test_a_refusal_is_recorded_with_what_waits(
    url: str, run_dir: Path, worker: WorkerPeer, tmp_path: Path
) -> None:
    """The queue that was in its way is told of, and the refusal comes after what waits."""
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us)
    bounds = QueueBounds(max_requests=1)
    async with member(url, run_dir, workers=(worker.address,), bounds=bounds, recorder=recorder) as gateway:
        await gateway.ready()
        worker.gate.clear()
        accepted = [await gateway.submit() for _ in range(2)]
        await wait_until(lambda: nothing_waits(gateway), "a driver has both")
        accepted.append(await gateway.submit(request_id="waits"))
        with pytest.raises(Refused):
            await gateway.submit(request_id="refused")
        worker.gate.set()
        for stream in accepted:
            await read_all(stream)
    await asyncio.to_thread(recorder.close)
    *_, waits, refused = [act for act in acts_in(tmp_path) if isinstance(act, OfferMade)]
    assert (waits.request_id, waits.outcome) == ("waits", Offered.QUEUED)
    assert (refused.request_id, refused.outcome) == ("refused", Offered.QUEUE_FULL)
    assert refused.waiting_requests == 1
    assert refused.act >= waits.act
