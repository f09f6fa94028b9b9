"""Turns at Redis, for acts that many may want at once.

The clock of an act (``redis_client.CALL_TIMEOUT_S``) says whether Redis answers, so it must not run while the act waits
behind others of its own process: a storm of requests is no failure of Redis. And acts of which there are only a few, as
a driver's, must find a connection in the midst of it. So what comes in storms waits here first, in order.

When Redis has answered none of as many acts as may be under way, whoever waits hears it at once, instead of finding it
out one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from admission.queue import StoreUnavailable

MOST_WAIT_S = 10.0
"""The longest wait for a turn. With acts of a millisecond, thousands are through by then."""


class Turns:
    """At most ``most`` acts under way at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._unanswered = 0  # acts in a row

    @asynccontextmanager
    async def turn(self, act: str) -> AsyncIterator[None]:
        """One act, in the block. Raises ``StoreUnavailable`` when its turn does not come or would be in vain."""
        must_wait = self._free.locked()
        try:
            async with asyncio.timeout(MOST_WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailable(f"{act}: too many others wait for Redis") from None
        try:
            if must_wait and self._unanswered >= self._most:
                raise StoreUnavailable(f"{act}: Redis has not answered those before")
            try:
                yield
            except StoreUnavailable:
                self._unanswered += 1
                raise
            self._unanswered = 0
        finally:
            self._free.release()
