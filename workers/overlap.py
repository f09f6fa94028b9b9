"""Plans begun on a device that works by itself, in order, and what to tell of them when they end.

The device is busy from when a step is begun, or the one before it has ended if that is later, until it has ended.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from workers.executor import Executor
from workers.link import Link
from workers.wire import PlanMessage, ReportMessage

DEPTH = 2
"""Steps on the device at most: one that runs, and one that follows it without a pause."""


@runtime_checkable
class OverlappingExecutor(Executor, Protocol):
    """An ``Executor`` that need not read a step's tokens before it begins the next."""

    def begin(self, plan: PlanMessage) -> None:
        """Start an iteration. Raises ``PlanError``, as ``execute`` does."""
        ...

    def complete(self) -> ReportMessage:
        """Wait for the oldest iteration begun; its report."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    link: Link
    plan: PlanMessage
    began: float
    idle_s: float


class Overlap:
    """At most ``DEPTH`` plans begun; ``clock`` gives seconds."""

    def __init__(self, executor: OverlappingExecutor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self._started: deque[_Started] = deque()
        self._ended_at: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self._started

    @property
    def is_full(self) -> bool:
        return len(self._started) >= DEPTH

    @property
    def oldest(self) -> tuple[Link, PlanMessage]:
        """Whose plan ends next. There has to be one."""
        return self._started[0].link, self._started[0].plan

    def forget(self) -> None:
        """The executor was reset: nothing is to be told, and the next plan waited for nothing."""
        self._started.clear()
        self._ended_at = None

    def begin(self, link: Link, plan: PlanMessage) -> None:
        """Raises what the executor's ``begin`` raises; the plan then does not count."""
        began = self._clock()
        self._executor.begin(plan)
        waited_s = began - self._ended_at if self.is_empty and self._ended_at is not None else 0.0
        self._started.append(_Started(link=link, plan=plan, began=began, idle_s=waited_s))

    def complete(self) -> ReportMessage:
        """The report of the oldest plan, with its times."""
        report = self._executor.complete()
        started = self._started.popleft()
        since = started.began if self._ended_at is None else max(started.began, self._ended_at)
        self._ended_at = self._clock()
        return dataclasses.replace(
            report, busy_us=round((self._ended_at - since) * 1e6), idle_us=round(started.idle_s * 1e6)
        )
