"""A worker's layers: on the engine's thread, by the clock on the wall, and on the link thread in processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.bench.layers.marks import Kind, Marks
from tests.bench.layers.stopwatch import STOPWATCHES, Stopwatch, cost_s, timing
from workers.server import Server
from workers.wire import PlanMessage, ReportMessage

WAITING = "waiting for a plan"
SOCKETS = "sockets and hand-over"
_KERNELS, _PASSES = "workers.fast.kernels", "workers.fast.forward.FastPasses"
MODEL = {
    "linears": (f"{_KERNELS}.Linear.store", f"{_KERNELS}.Linear.add", f"{_KERNELS}.Linear.gate"),
    "attention": (f"{_KERNELS}.Kernels.attend",),
    "norms": (f"{_KERNELS}.Kernels.normalise",),
    "head and choice": (f"{_KERNELS}.Linear.best", f"{_KERNELS}.Linear.logits", "workers.engine.sample"),
    "transformers' own forward": ("workers.model.CausalModel.logits",),
    "rows and calls": (f"{_PASSES}.best", f"{_PASSES}.emitted", f"{_PASSES}.all_logits"),
    "state and report": ("workers.engine.Engine.execute",),
}
"""*rows and calls*: the embedding, cosines and sines, and Python around the calls of kernels. *state and report*: what
the engine does for each sequence.
"""

SCRIPT = {"script": ("workers.fake.FakeExecutor.execute",)}
"""In place of a model."""

SERVER = {"taking and handing over": ("workers.server.Server._take",)}
LINKS = {"wire": ("workers.wire.framing.FrameDecoder.feed", "workers.link.encode")}


@contextmanager
def worker_marks(argv: list[str], marks: Marks) -> Iterator[None]:
    """A mark after each plan that was executed, at the moment when its report is there.

    The link thread's clock is that thread's own, and began with it.
    """
    engine = Stopwatch(WAITING, clock=time.perf_counter, cost_s=cost_s(time.perf_counter))
    links = Stopwatch(SOCKETS, clock=time.thread_time, began=0.0, cost_s=cost_s(time.thread_time))
    add = engine.timed(STOPWATCHES, marks.add)

    def marked(execute: Callable[[Server, PlanMessage], ReportMessage]) -> Callable[[Server, PlanMessage], Any]:
        def run(server: Server, plan: PlanMessage) -> ReportMessage:
            report = execute(server, plan)
            add(
                {"engine": engine.read(), "links": links.latest()},
                at_s=time.perf_counter(),
                kind=Kind.REPORT,
                decodes=len(plan.decode),
                prompt_tokens=sum(span.length for span in plan.prefill),
            )
            return report

        return run

    with (
        timing(engine, SERVER),
        timing(engine, SCRIPT if "--fake-worker" in argv else MODEL),
        timing(links, LINKS),
        patch.object(Server, "_execute", marked(Server._execute)),
    ):
        yield
