"""The clock of the gateway's machinery: monotonic, in integer microseconds. Wall clocks never measure durations."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000
