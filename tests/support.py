"""What tests of every room share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_POLL_S = 0.005

HANG_GUARD_S = 20.0
"""What is waited for takes a moment on a machine left alone; on one that others use, a process may get little of it."""


async def wait_until(
    predicate: Callable[[], bool] | Callable[[], Awaitable[bool]], description: str, timeout_s: float = HANG_GUARD_S
) -> None:
    """Return once ``predicate`` (plain or async) holds; ``AssertionError(description)`` when it never does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        holds = predicate()
        if isinstance(holds, Awaitable):
            holds = await holds
        if holds:
            return
        if loop.time() >= deadline:
            raise AssertionError(description)
        await asyncio.sleep(_POLL_S)
