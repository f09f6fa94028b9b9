"""The link of a driver to another gateway: after a break everything comes again, however much, without a gap."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.clock import monotonic_us
from gateway.estimates import Estimates
from gateway.frames import FrameConnection
from gateway.handshake import FrameListener
from gateway.metrics import Metrics
from gateway.origin_link import OriginLink
from gateway.stream import Stream
from gateway.streams import Streams
from tests.gateway.fake_queue import claim_of
from tests.support import wait_until
from workers.wire import WIRE_VERSION, Challenge, Deliver, Delivery, Scores, encode


class Origin:
    """A gateway that takes deliveries, and may be slow to."""

    def __init__(self) -> None:
        self.streams = Streams(clock=monotonic_us, metrics=Metrics(CollectorRegistry()), estimates=Estimates())
        self.listener = FrameListener(secret=b"", serve=self._serve)
        self.reads = asyncio.Event()
        self.num_links = 0

    def open(self, sequence_id: str) -> Stream:
        return self.streams.open(
            claim_of(sequence_id).entry, model="m", on_cancel=lambda _: None, on_lost=lambda _: None
        )

    async def _serve(self, connection: FrameConnection) -> None:
        self.num_links += 1
        while True:
            await self.reads.wait()
            message = await connection.receive()
            assert isinstance(message, Deliver)
            self.streams.deliver(message.driver, message.deliveries)
            await asyncio.sleep(0)


def scored(sequence_id: str, position: int, number: int) -> Delivery:
    """Tokens with twenty log-probabilities beside each."""
    tokens = tuple(range(position, position + number))
    top = tuple(-float(place) for _ in tokens for place in range(20))
    return Delivery(
        sequence_id=sequence_id,
        position=position,
        token_ids=tokens,
        finish="",
        error="",
        scores=Scores(own=tuple(-float(token) for token in tokens), top_ids=(7,) * len(top), top=top),
    )


async def converse(connection: FrameConnection) -> None:
    while True:
        await connection.receive()


async def test_a_link_that_comes_up_sends_more_than_may_be_unsent(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No faster than it is read; and what is made meanwhile comes behind it, without a gap."""
    monkeypatch.setattr("gateway.frames.MAX_UNSENT_BYTES", 1 << 17)
    monkeypatch.setattr("gateway.origin_link._REPLAY_VALUES", 1 << 12)
    origin = Origin()
    address = await origin.listener.start(f"unix:{run_dir}/origin")
    link = OriginLink(address, name="g", secret=b"", clock=monotonic_us, unreachable_s=5.0, converse=converse)
    names = ("a", "b", "c")
    streams = [origin.open(name) for name in names]
    for name in names:
        link.deliver("g/w", [scored(name, 0, 2_000)])
    running = asyncio.create_task(link.run())
    await wait_until(lambda: origin.num_links == 1, "the link is up")
    for name in names:
        link.deliver("g/w", [scored(name, 2_000, 5)])
    origin.reads.set()
    await wait_until(lambda: all(stream.next_position == 2_005 for stream in streams), "all has come")
    link.deliver("g/w", [scored("a", 2_005, 5)])
    await wait_until(lambda: streams[0].next_position == 2_010, "what is made then goes at once")
    assert origin.num_links == 1
    for stream in streams:
        tokens = await anext(stream)
        assert [logprob.own for logprob in tokens.logprobs] == [-float(token) for token in tokens.token_ids]
    running.cancel()
    await asyncio.wait([running])
    await origin.listener.close()


async def test_a_peer_that_reads_nothing_is_no_link(run_dir: Path) -> None:
    """It is given up in time, although its connection stays open."""
    writers: list[asyncio.StreamWriter] = []

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Challenge(version=WIRE_VERSION, nonce=b"n")))
        writers.append(writer)

    server = await asyncio.start_unix_server(accept, f"{run_dir}/origin")
    link = OriginLink(
        f"unix:{run_dir}/origin", name="g", secret=b"", clock=monotonic_us, unreachable_s=0.1, converse=converse
    )
    for name in ("a", "b", "c", "d"):
        link.deliver("g/w", [scored(name, 0, 2_000)])
    running = asyncio.create_task(link.run())
    await wait_until(lambda: len(writers) == 2, "it is dialled again")
    running.cancel()
    await asyncio.wait([running])
    server.close()
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
