"""The log of one driver: every step of its scheduler, and what its worker said of each plan."""

from __future__ import annotations

import time
from collections.abc import Sequence

from admission.events import Event, Step
from admission.record.entries import Executed, Opened, Stepped
from admission.record.snapshot import freeze
from admission.scheduler import Scheduler
from gateway.clock import Clock
from gateway.recording import Recorder
from workers.wire import Hello, ReportMessage


class DriverLog:
    """Records as the driver decides. ``before_step`` comes before each step, ``stepped`` after it."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        driver_id: str,
        epoch: int,
        hello: Hello,
        scheduler: Scheduler,
        clock: Clock,
    ) -> None:
        self._clock = clock
        gateway_id = driver_id.partition("/")[0]

        def opens() -> Opened:
            return Opened(
                gateway_id=gateway_id,
                driver_id=driver_id,
                model=hello.card.name,
                segment=0,
                is_whole=True,
                opened_us=clock(),
                opened_unix_us=time.time_ns() // 1000,
                preset=scheduler.preset.name,
                progress=scheduler.progress,
                limits=scheduler.limits,
                context_length=hello.card.context_length,
                state=freeze(scheduler),
            )

        self._log = recorder.log(f"driver-{driver_id.partition('/')[2]}-{epoch}", opens)
        self.before_step = self._log.before

    def stepped(self, now_us: int, events: Sequence[Event], step: Step) -> None:
        self._log.add(Stepped(now_us=now_us, events=tuple(events), step=step))

    def executed(self, report: ReportMessage) -> None:
        self._log.add(
            Executed(
                now_us=self._clock(),
                step=report.step,
                busy_us=report.busy_us,
                idle_us=report.idle_us,
                num_tokens=len(report.tokens),
            )
        )

    def close(self) -> None:
        self._log.close()
