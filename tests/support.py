"""What tests of every room share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_POLL_S = 0.005


async def wait_until(
    predicate: Callable[[], bool] | Callable[[], Awaitable[bool]], description: str, timeout_s: float = 5.0
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
