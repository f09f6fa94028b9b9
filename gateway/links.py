"""The link to one worker: handshake, plans out, reports in, and a watchdog over progress.

A worker counts as lost when its connection ends, when it answers out of turn, or when it lets ``progress_timeout_s``
pass without a report although a plan is with it. A worker that hangs keeps its socket open for ever: only lack of
progress tells.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

from gateway.frames import FrameConnection, LinkLost
from gateway.handshake import HANDSHAKE_TIMEOUT_S, dial
from workers.wire import Hello, Message, PlanMessage, ReportMessage, TokenizerFiles, TokenizerRequest, Welcome

PROGRESS_TIMEOUT_S = 30.0
"""Longest wait for a report, unless a setting says otherwise: far above the slowest iteration of a healthy worker (a
full budget of prompt on a CPU)."""

_TOKENIZER_TIMEOUT_S = 30.0


class WorkerLink:
    """One connection to a worker, from its hello to its loss. Every call raises ``LinkLost`` once it is lost."""

    def __init__(self, connection: FrameConnection, hello: Hello, *, progress_timeout_s: float) -> None:
        self.hello = hello
        self._connection = connection
        self._progress_timeout_s = progress_timeout_s
        self._epoch = 0
        self._due: deque[int] = deque()
        self._progress_at_s = 0.0
        self._watchdog: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, address: str, *, gateway_id: str, secret: bytes, progress_timeout_s: float = PROGRESS_TIMEOUT_S
    ) -> WorkerLink:
        """Dial a worker and read its hello. Raises ``LinkLost``."""
        connection = await dial(address, name=gateway_id, secret=secret)
        try:
            hello = await connection.expect(Hello, HANDSHAKE_TIMEOUT_S)
        except BaseException:
            connection.abort("the handshake failed")
            raise
        return cls(connection, hello, progress_timeout_s=progress_timeout_s)

    async def tokenizer_files(self) -> TokenizerFiles:
        """The tokenizer of the worker's model. Only before the first plan: afterwards reports come in between."""
        digest = self.hello.card.tokenizer_digest
        self._connection.send(TokenizerRequest(digest=digest))
        files = await self._connection.expect(TokenizerFiles, _TOKENIZER_TIMEOUT_S)
        if files.digest != digest:
            raise LinkLost(f"{self._connection.peer} sent another tokenizer than it announced")
        return files

    def welcome(self, *, epoch: int, max_in_flight: int) -> None:
        """Drive the worker from now on, under ``epoch``."""
        self._epoch = epoch
        self._connection.send(Welcome(epoch=epoch, max_in_flight=max_in_flight))

    @property
    def epoch(self) -> int:
        return self._epoch

    def send(self, plan: PlanMessage) -> None:
        self._connection.send(plan)
        if not self._due:
            self._progress_at_s = asyncio.get_running_loop().time()
            if self._watchdog is None:
                self._watch(self._progress_timeout_s)
        self._due.append(plan.step)

    async def hand_on(self, take: Callable[[Sequence[ReportMessage]], None]) -> NoReturn:
        """Call ``take`` with the reports that come together, in the call that brings them, until the link is lost.

        Raises ``LinkLost``, or what ``take`` raised.
        """
        await self._connection.hand_on(lambda messages: take([self._due_report(message) for message in messages]))

    def _due_report(self, report: Message) -> ReportMessage:
        """The message, which must be the report of the oldest plan that is with the worker."""
        if not isinstance(report, ReportMessage):
            raise LinkLost(f"{self._connection.peer} sent {type(report).__name__} where a report was due")
        if not self._due or report.step != self._due[0] or report.epoch != self._epoch:
            raise LinkLost(f"{self._connection.peer} reported plan {report.step} of epoch {report.epoch} out of turn")
        self._due.popleft()
        self._progress_at_s = asyncio.get_running_loop().time()
        return report

    async def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        await self._connection.close()

    def _watch(self, delay_s: float) -> None:
        self._watchdog = asyncio.get_running_loop().call_later(delay_s, self._check_progress)

    def _check_progress(self) -> None:
        """Runs about once per timeout, not once per plan, so that watching costs an iteration nothing."""
        self._watchdog = None
        if not self._due:
            return
        silent_s = asyncio.get_running_loop().time() - self._progress_at_s
        if silent_s >= self._progress_timeout_s:
            self._connection.abort(f"made no progress on plan {self._due[0]} for {silent_s:.1f} s")
        else:
            self._watch(self._progress_timeout_s - silent_s)
