"""Steps begun on a device that works by itself, and what to tell of each when it ends.

The engine's thread begins steps and makes their reports; in between it waits for mail, not for the device. A thread
here does that waiting, step by step in their order, and sends mail when one has ended. So the next plan is begun the
moment it comes, while the last one still runs.

The device is busy from when a step is begun, or the one before it has ended if that is later, until it has ended;
it idles from the end of one to the beginning of the next.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, runtime_checkable

import structlog

from workers.executor import Executor
from workers.link import Link
from workers.mail import Mail, StepEnded
from workers.wire import PlanMessage, ReportMessage

JOIN_S = 5.0
"""A step takes milliseconds; a device that hangs for longer is not waited for when the worker ends."""

_log = structlog.get_logger(__name__)


@runtime_checkable
class OverlappingExecutor(Executor, Protocol):
    """An ``Executor`` that need not read a step's tokens before it begins the next."""

    def begin(self, plan: PlanMessage) -> Callable[[], object]:
        """Start an iteration; what waits until the device has done it, on any thread.

        Raises ``PlanError``, as ``execute`` does.
        """
        ...

    def complete(self) -> ReportMessage:
        """The report of the oldest iteration begun, which waits until it is done."""
        ...


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A plan on the device. Times are in seconds of the clock; ``ended`` is the waiting thread's to set."""

    link: Link
    plan: PlanMessage
    wait: Callable[[], object]
    began: float
    ended: float = 0.0


class Overlap:
    """The steps begun: as many as the driver may have in flight. All but the waiting belongs to the engine's thread."""

    def __init__(self, executor: OverlappingExecutor, *, mail: SimpleQueue[Mail], clock: Callable[[], float]) -> None:
        self._executor = executor
        self._mail = mail
        self._clock = clock
        self._steps: deque[Step] = deque()
        self._num_running = 0
        self._last_end: float | None = None
        self._to_wait_for: SimpleQueue[Step | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._wait, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._to_wait_for.put(None)
        self._thread.join(JOIN_S)

    def begin(self, link: Link, plan: PlanMessage) -> None:
        """Raises what the executor's ``begin`` raises; the plan then does not count."""
        began = self._clock()
        step = Step(link=link, plan=plan, wait=self._executor.begin(plan), began=began)
        self._steps.append(step)
        self._num_running += 1
        self._to_wait_for.put(step)

    @property
    def is_idle(self) -> bool:
        """Whether the device has ended all that was begun, forgotten or not."""
        return self._num_running == 0

    def ended(self, step: Step) -> bool:
        """A step has left the device; whether its report is due, not so if it was forgotten meanwhile."""
        self._num_running -= 1
        return bool(self._steps) and self._steps[0] is step

    def complete(self) -> ReportMessage:
        """The report of the oldest step, which has ended, with its times."""
        step = self._steps.popleft()
        report = self._executor.complete()
        since = step.began if self._last_end is None else max(step.began, self._last_end)
        idle_s = 0.0 if self._last_end is None else max(step.began - self._last_end, 0.0)
        self._last_end = step.ended
        return dataclasses.replace(report, busy_us=round((step.ended - since) * 1e6), idle_us=round(idle_s * 1e6))

    def forget(self) -> None:
        """The executor was reset, or failed: nothing is to be told, and the next plan waits for nothing."""
        self._steps.clear()
        self._last_end = None

    def _wait(self) -> None:
        while (step := self._to_wait_for.get()) is not None:
            try:
                step.wait()
            except Exception:  # noqa: BLE001 -- the step's report raises it again, where it costs the driver its link
                _log.exception("device_failed", step=step.plan.step)
            step.ended = self._clock()
            self._mail.put(StepEnded(step=step))
