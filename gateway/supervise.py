"""Keeping child processes running: start, restart after a death with growing pauses, stop in order.

A child that ends before the whole has come up once is a mistake to report, not an accident to repair: then ``failed``
tells why. From then on a death is repaired for as long as the supervisor lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from gateway.console import complaint_of
from gateway.process import CannotStart

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
STEADY_AFTER_S = 30.0  # a child that lived so long starts again with the first pause

log = structlog.get_logger(__name__)


class Running(Protocol):
    """A started child."""

    last_line: str

    async def wait(self) -> int: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...


class StartFailed(Exception):
    """A child ended while everything was starting; the text is one sentence for the person who started it."""


class Service:
    """One child that is to run until told otherwise. ``run`` does it, ``stop`` and ``kill`` end it for good."""

    def __init__(self, name: str, start: Callable[[], Awaitable[Running]]) -> None:
        self.name = name
        self._start = start
        self._child: Running | None = None
        self._started = False
        self._settled = False
        self._stopping = asyncio.Event()

    async def is_started(self) -> bool:
        """Whether the child has been started at least once."""
        return self._started

    def settle(self) -> None:
        """Everything has come up: from now on, repair."""
        self._settled = True

    async def run(self) -> None:
        """Keep the child running until it is stopped. Raises ``StartFailed`` before ``settle``."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            lived_s = await self._run_once()
            if self._stopping.is_set():
                return
            pause_s = FIRST_PAUSE_S if lived_s >= STEADY_AFTER_S else pause_s
            log.warning("child_restarts", child=self.name, pause_s=pause_s)
            if await self._stops_within(pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def stop(self) -> None:
        """End the child, within its grace, and do not start it again. Idempotent."""
        self._stopping.set()
        if self._child is not None:
            await self._child.stop()

    def kill(self) -> None:
        """End the child at once and do not start it again."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    async def _run_once(self) -> float:
        """Start the child and wait for its end; the seconds that it lived."""
        clock = asyncio.get_running_loop().time
        started_s = clock()
        try:
            self._child = await self._start()
        except CannotStart as error:
            self._report_end(f"{self.name} did not start: {error}")
            return 0.0
        self._started = True
        if self._stopping.is_set():  # asked to stop while the child was being started
            await self._child.stop()
            return 0.0
        code = await self._child.wait()
        if not self._stopping.is_set():
            reason = complaint_of(self._child.last_line)
            self._report_end(f"{self.name} ended ({describe_exit(code)})" + (f": {reason}" if reason else ""))
        return clock() - started_s

    def _report_end(self, sentence: str) -> None:
        if not self._settled:
            raise StartFailed(sentence)
        log.error("child_ended", child=self.name, reason=sentence)

    async def _stops_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True


def describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
