"""A progress bar on a terminal: one line on stderr that is rewritten in place. Elsewhere it is silent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from gateway.console import CLEAR_LINE

WIDTH = 30
FIRST_AFTER_S = 0.5
"""What is over by then needs no bar."""

EVERY_S = 0.1


class ProgressBar:
    """``show`` may be called as often as wished; leaving the block clears the line. ``seconds`` is a steady clock."""

    def __init__(
        self, label: str, total: int, *, out: TextIO = sys.stderr, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._label = label
        self._total = total
        self._out = out
        self._seconds = seconds
        self._live = out.isatty()
        self._began_s = seconds()
        self._next_s = self._began_s + FIRST_AFTER_S

    def show(self, done: int) -> None:
        if not self._live or (now_s := self._seconds()) < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        filled = WIDTH * done // self._total
        bar = "█" * filled + "░" * (WIDTH - filled)
        elapsed_s = now_s - self._began_s
        self._out.write(f"{CLEAR_LINE}{self._label} {bar} {100 * done // self._total:3} % {elapsed_s:.0f} s")
        self._out.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._out.write(CLEAR_LINE)
            self._out.flush()
