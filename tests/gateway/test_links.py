"""The link to a worker: reports in turn, tokenizers as announced, progress watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.frames import FrameConnection, LinkLost
from gateway.handshake import FrameListener
from gateway.links import WorkerLink
from tests.gateway.worker_peer import WorkerPeer
from workers.wire import Hello, PlanMessage, ReportMessage, TokenizerFiles, Welcome


def plan(step: int) -> PlanMessage:
    return PlanMessage(step=step, epoch=3, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=())


def report(**changes: Any) -> ReportMessage:
    values: dict[str, Any] = {
        "step": 0, "epoch": 3, "tokens": (), "finished": (), "live_blocks": 0, "busy_us": 1, "idle_us": 0,
    }  # fmt: skip
    return ReportMessage(**(values | changes))


async def opened(peer: WorkerPeer, run_dir: Path, **options: Any) -> WorkerLink:
    await peer.start(f"unix:{run_dir}/w")
    return await WorkerLink.open(peer.address, gateway_id="g", secret=b"", **options)


@asynccontextmanager
async def reports_of(link: WorkerLink) -> AsyncIterator[asyncio.Queue[ReportMessage]]:
    """The reports as they come."""
    reports: asyncio.Queue[ReportMessage] = asyncio.Queue()

    def take(arrived: Sequence[ReportMessage]) -> None:
        for report in arrived:
            reports.put_nowait(report)

    listening = asyncio.create_task(link.hand_on(take))
    try:
        yield reports
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def lost(link: WorkerLink) -> None:
    """Until it is lost."""
    async with asyncio.timeout(5.0):
        await link.hand_on(lambda _: None)


async def test_plans_are_reported_in_order(run_dir: Path) -> None:
    """Two may be on their way at once."""
    peer = WorkerPeer()
    link = await opened(peer, run_dir)
    assert (await link.tokenizer_files()).digest == link.hello.card.tokenizer_digest
    link.welcome(epoch=3, max_in_flight=2)
    link.send(plan(0))
    link.send(plan(1))
    async with reports_of(link) as reports:
        assert [(await reports.get()).step, (await reports.get()).step] == [0, 1]
    await link.close()
    await peer.kill()


async def test_no_progress_on_a_plan_in_time_loses_the_link(run_dir: Path) -> None:
    """A hung worker keeps its socket open: only this tells."""
    peer = WorkerPeer()
    peer.gate.clear()
    link = await opened(peer, run_dir, progress_timeout_s=0.05)
    link.welcome(epoch=3, max_in_flight=2)
    link.send(plan(0))
    with pytest.raises(LinkLost, match="made no progress on plan 0"):
        await lost(link)
    await link.close()
    await peer.kill()


async def test_a_worker_without_plans_may_be_silent(run_dir: Path) -> None:
    """Idle is not hung."""
    peer = WorkerPeer()
    link = await opened(peer, run_dir, progress_timeout_s=0.05)
    link.welcome(epoch=3, max_in_flight=2)
    async with reports_of(link) as reports:
        for step in range(2):
            link.send(plan(step))
            await reports.get()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.15):
                    await reports.get()
    await link.close()
    await peer.kill()


@pytest.mark.parametrize("wrong", [{"step": 1}, {"epoch": 2}])
async def test_a_report_out_of_turn_loses_the_link(run_dir: Path, wrong: dict[str, int]) -> None:
    """What another epoch or another order says about our sequences cannot be used."""
    peer = WorkerPeer()

    async def serve(connection: FrameConnection) -> None:
        connection.send(
            Hello(worker_id="w", card=peer.executor.card, max_slots=1, kv_blocks=1, block_size=1, last_epoch=0)
        )
        await connection.expect(Welcome, 5.0)
        await connection.expect(PlanMessage, 5.0)
        connection.send(report(**wrong))
        await connection.receive()

    listener = FrameListener(secret=b"", serve=serve)
    address = await listener.start(f"unix:{run_dir}/w")
    link = await WorkerLink.open(address, gateway_id="g", secret=b"")
    link.welcome(epoch=3, max_in_flight=2)
    link.send(plan(0))
    with pytest.raises(LinkLost, match="out of turn"):
        await lost(link)
    await link.close()
    await listener.close()


async def test_another_tokenizer_than_announced_loses_the_link(run_dir: Path) -> None:
    """Text of one tokenizer with the model of another would be nonsense that looks like an answer."""
    peer = WorkerPeer()
    peer.executor.tokenizer_files = lambda: TokenizerFiles(digest="other", files=())  # type: ignore[method-assign]
    link = await opened(peer, run_dir)
    with pytest.raises(LinkLost, match="another tokenizer"):
        await link.tokenizer_files()
    await link.close()
    await peer.kill()
