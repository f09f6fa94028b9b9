"""One child process: started in a session of its own, read line by line, stopped within a bound.

A child never outlives its parent: the kernel kills it when the parent dies, however that happens
(``PR_SET_PDEATHSIG``). And no Ctrl-C of the terminal reaches it: who stops when is the parent's decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 1024  # of a child's output; a longer line is cut into several
OUTPUT_GRACE_S = 1.0  # to read what a child wrote just before it ended
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run. ``stop_grace_s`` is how long the child may take to end after SIGTERM, before SIGKILL."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stop_grace_s: float


class CannotStart(Exception):
    """A program that did not start; the text is one sentence."""


class Child:
    """A running child. ``last_line`` is the last that it wrote: when it fails, most often the reason."""

    def __init__(self, spec: ChildSpec, process: Process, on_line: Callable[[str, str], None]) -> None:
        self.spec = spec
        self.last_line = ""
        self._process = process
        self._on_line = on_line
        self._reader = asyncio.create_task(self._read_output(), name=f"output of {spec.name}")

    @classmethod
    async def start(cls, spec: ChildSpec, on_line: Callable[[str, str], None]) -> Child:
        """Start ``spec``; ``on_line(name, line)`` gets every line that it writes. Raises ``CannotStart``."""
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                env=dict(spec.env),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise CannotStart(f"cannot run {spec.argv[0]}: {error.strerror}") from error
        return cls(spec, process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end of the child and of its output; its exit code, negative for a signal."""
        code = await self._process.wait()
        await asyncio.wait({self._reader}, timeout=OUTPUT_GRACE_S)
        self._reader.cancel()
        return code

    async def stop(self) -> None:
        """End the child: SIGTERM, and SIGKILL to its whole session when the grace has passed. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self.spec.stop_grace_s)
        except TimeoutError:
            self.kill()
        await self.wait()

    def kill(self) -> None:
        """SIGKILL to the child's whole session, at once."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_output(self) -> None:
        stream = self._process.stdout
        if stream is None:
            raise RuntimeError("a child is always started with a pipe for its output")
        rest = b""
        while chunk := await stream.read(MAX_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take_line(line)
            if len(rest) > MAX_LINE_BYTES:
                self._take_line(rest)
                rest = b""
        self._take_line(rest)

    def _take_line(self, raw: bytes) -> None:
        # A progress bar overwrites its line with carriage returns: what it showed last is what counts.
        line = raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
        if line:
            self.last_line = line
            self._on_line(self.spec.name, line)


def die_with_parent() -> Callable[[], None] | None:
    """What a child runs between fork and exec so that it dies with the thread that forked it (Linux only)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: after a fork only plain calls are safe
    parent = os.getpid()

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return before_exec
