"""A gateway's layers, in processor time of the thread of its event loop.

Time on the wall would say more of the worker beside it, which wants every core. Outside these layers the event loop
itself runs, and reads and writes sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from gateway.connection import Connection
from gateway.driver import Driver
from tests.bench.layers.marks import Kind, Marks
from tests.bench.layers.stopwatch import STOPWATCHES, Stopwatch, cost_s, timing

EVENT_LOOP = "event loop, sockets"
LAYERS = {
    "wire": (
        "gateway.frames.FrameConnection.data_received",
        "gateway.frames.FrameConnection.send",
        "workers.wire.framing.FrameDecoder.feed",
        "gateway.frames.encode",
    ),
    "scheduler": ("admission.scheduler.Scheduler.step",),
    "driver": tuple(f"gateway.driver.Driver.{name}" for name in ("_take_reports", "_take_claims", "_turn")),
    "origin": ("gateway.streams.Streams.deliver",),
    "text of tokens": ("gateway.output.OutputText.take_tokens",),
    "events": ("gateway.chunks.ChunkWriter.text", "gateway.sse.SseResponse.write_at_once"),
    "requests, first and last events": (
        "gateway.connection.Connection.start",
        "gateway.connection.Connection.data_received",
        "gateway.connection.Connection._handle_request",
    ),
    "talking to Redis": (
        "admission.redis_queue.RedisQueue.offer",
        "gateway.claimer.Claimer._claim_when_due",
        "gateway.claimer.Claimer._take_handed",
        "gateway.store_acts.StoreActs.run",
        "gateway.heartbeat.Heartbeat.run",
    ),
}


@contextmanager
def gateway_marks(marks: Marks) -> Iterator[None]:
    """A mark at each report and at each piece of a request that comes in."""
    loop = Stopwatch(EVENT_LOOP, clock=time.thread_time, cost_s=cost_s(time.thread_time))
    add = loop.timed(STOPWATCHES, marks.add)

    def marked(kind: Kind, function: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            at_s = time.perf_counter()
            function(*arguments)
            add({"loop": loop.read()}, at_s=at_s, kind=kind)

        return run

    with timing(loop, LAYERS):
        reports = patch.object(Driver, "_take_reports", marked(Kind.REPORT, Driver._take_reports))
        requests = patch.object(Connection, "data_received", marked(Kind.REQUEST, Connection.data_received))
        with reports, requests:
            yield
