"""One thing to wait for, and what runs beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_beside(main: Coroutine[Any, Any, None], *helpers: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` to its end, the ``helpers`` as long as it runs. The first failure of any ends all, as itself.

    A task group reports failures as a group; here the first one is the cause, and the rest is what came of it.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(helper) for helper in helpers]
            await main
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        _heed_cancel()  # one from outside, that came while the group ended by itself
        raise _first(failures) from failures


def _heed_cancel() -> None:
    """Raise a cancel that a task group has swallowed: on Python 3.11 it can, in the very turn in which it ends."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
