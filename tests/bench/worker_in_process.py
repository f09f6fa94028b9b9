"""An engine in this process behind a gateway's end: no socket, no second process, and time as this thread spends it."""

from __future__ import annotations

import argparse
import time
from collections import deque

from tests.workers.engine_support import Options
from workers.engine import Engine
from workers.loading import load_engine
from workers.wire import Hello, PlanMessage, ReportMessage


def load(options: argparse.Namespace) -> Engine:
    """On one thread: the processor time of several says nothing about how long something takes."""
    return load_engine(
        Options(
            model=options.model,
            device=options.device,
            dtype=options.dtype,
            max_slots=options.slots,
            block_size=16,
            max_model_len=options.max_model_len,
            threads=1,
            deterministic=options.deterministic,
            forward=options.forward,
            quantize=options.quantize,
        ),
        lambda _: None,
    )


class EngineEnd:
    """Executes each plan when its report is asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._plans: deque[PlanMessage] = deque()

    def drive(self, *, epoch: int) -> Hello:
        engine = self._engine
        engine.reset()
        return Hello(
            worker_id="in process",
            card=engine.card,
            max_slots=engine.max_slots,
            kv_blocks=engine.kv_blocks,
            block_size=engine.block_size,
            last_epoch=epoch,
        )

    def send(self, plan: PlanMessage, /) -> None:
        self._plans.append(plan)

    def receive(self, _kind: type[ReportMessage], /) -> ReportMessage:
        return self._engine.execute(self._plans.popleft())

    def close(self) -> None:
        self._plans.clear()

    @staticmethod
    def now_s() -> float:
        return time.process_time()
