"""A worker around an executor: plans come from the link thread, reports go back to it.

The thread that calls ``run`` (the process's main thread) is the engine's: it takes one plan after another and does
nothing else, so the time between two plans that were both here is that of a queue. When a driver is lost the executor
forgets everything and the worker waits for the next one. A plan that breaks the rules, or an executor that fails, costs
the driver its link and the sequences on it, loudly; the worker lives on.

An executor whose device works by itself (``overlap.py``) is given each plan when it comes, and makes its report when
mail says that the device has done it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from queue import SimpleQueue
from socket import socket
from typing import TypeVar

import structlog

from workers.executor import Executor, PlanError
from workers.link import Link, LinkTimes
from workers.links import Links
from workers.mail import Assigned, DriverLost, LinksFailed, Mail, StepEnded, Stop
from workers.overlap import Overlap, OverlappingExecutor, Step
from workers.wire import Hello, PlanMessage, Refusal, ReportMessage

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)


class Server:
    """One worker on a listening socket."""

    def __init__(
        self, executor: Executor, *, listener: socket, worker_id: str, secret: bytes, times: LinkTimes | None = None
    ) -> None:
        self._executor = executor
        self._worker_id = worker_id
        self._mail: SimpleQueue[Mail] = SimpleQueue()
        self._links = Links(
            listener=listener,
            mail=self._mail,
            secret=secret,
            introduce=self._introduce,
            tokenizer=executor.tokenizer_files(),
            times=LinkTimes() if times is None else times,
        )
        self._overlap: Overlap | None = None
        if isinstance(executor, OverlappingExecutor):
            self._overlap = Overlap(executor, mail=self._mail, clock=time.perf_counter)
        self._failed_link: Link | None = None
        self._losses: list[DriverLost] = []
        self._idle_since: float | None = None

    def run(self) -> None:
        """Serve until ``stop``, or until an exception (a signal's, say) ends it. Links are closed either way."""
        self._links.start()
        if self._overlap is not None:
            self._overlap.start()
        try:
            while self._take(self._mail.get()):
                pass
        finally:
            self._links.close()
            if self._overlap is not None:
                self._overlap.close()

    def stop(self) -> None:
        """End ``run`` when the plan in progress is done. Any thread may call it."""
        self._mail.put(Stop())

    def _take(self, mail: Mail) -> bool:
        """Act on one piece of mail; false ends the loop."""
        match mail:
            case Assigned(link=link, plan=plan):
                if link.is_open and link is not self._failed_link:
                    self._serve(link, plan)
            case DriverLost():
                self._executor.reset()
                if self._overlap is not None:
                    self._overlap.forget()
                self._failed_link = None
                self._idle_since = None
                self._losses.append(mail)
                self._settle()
            case StepEnded(step=step):
                if self._overlap is not None and self._overlap.ended(step):
                    self._complete(self._overlap, step)
                self._settle()
            case LinksFailed(error=error):
                raise error
            case Stop():
                return False
        return True

    def _settle(self) -> None:
        """Lost drivers are let go of once nothing of theirs is being computed."""
        if self._losses and (self._overlap is None or self._overlap.is_idle):
            for loss in self._losses:
                loss.settled.set()
            self._losses.clear()
            self._links.wake()

    def _serve(self, link: Link, plan: PlanMessage) -> None:
        overlap = self._overlap
        if overlap is None:
            self._answer(link, self._guarded(plan, lambda: self._execute(plan)))
        elif isinstance(result := self._guarded(plan, lambda: overlap.begin(link, plan)), Refusal):
            self._answer(link, result)

    def _complete(self, overlap: Overlap, step: Step) -> None:
        result = self._guarded(step.plan, overlap.complete)
        if isinstance(result, Refusal):
            overlap.forget()  # what was begun behind it stands on a step that failed
        if step.link is not self._failed_link:
            self._answer(step.link, result)

    def _answer(self, link: Link, result: ReportMessage | Refusal) -> None:
        if isinstance(result, Refusal):
            # The next plan may be here already; the link ends soon, and DriverLost brings the reset.
            self._failed_link = link
        self._links.post(link, result)

    @staticmethod
    def _guarded(plan: PlanMessage, action: Callable[[], Result]) -> Result | Refusal:
        try:
            return action()
        except PlanError as error:
            return Refusal(message=f"plan {plan.step} is refused: {error}")
        except Exception as error:  # noqa: BLE001 -- whatever it is, it costs this driver its link and nobody else
            _log.exception("iteration_failed", step=plan.step)
            return Refusal(message=f"plan {plan.step} failed: {type(error).__name__}: {error}")

    def _execute(self, plan: PlanMessage) -> ReportMessage:
        started = time.perf_counter()
        idle_s = 0.0 if self._idle_since is None else started - self._idle_since
        report = self._executor.execute(plan)
        ended = self._idle_since = time.perf_counter()
        return dataclasses.replace(report, busy_us=_microseconds(ended - started), idle_us=_microseconds(idle_s))

    def _introduce(self, last_epoch: int) -> Hello:
        return Hello(
            worker_id=self._worker_id,
            card=self._executor.card,
            max_slots=self._executor.max_slots,
            kv_blocks=self._executor.kv_blocks,
            block_size=self._executor.block_size,
            last_epoch=last_epoch,
            host_blocks=self._executor.host_blocks,
        )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
