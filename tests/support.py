"""What tests of all rooms share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(predicate: Callable[[], bool], description: str, timeout_s: float = 5.0) -> None:
    """Poll until the predicate holds; fail with the description when it does not in time."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not predicate():
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(description)
        await asyncio.sleep(0.005)
