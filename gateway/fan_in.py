"""Several token streams read as one: what comes of them in the same iteration comes together.

Of each stream at most one item is on its way here, so a stream whose reader is slow still keeps its tokens itself,
where they are bounded. A single stream is read directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.dispatch import Tokens, TokenStream


class StreamBroken(Exception):
    """A stream ended without saying how."""


class FanIn:
    """Streams by their index. Made by ``reading``."""

    def __init__(self, streams: Sequence[TokenStream]) -> None:
        self._open = {index: aiter(stream) for index, stream in enumerate(streams)}
        self._coming: dict[asyncio.Task[Tokens], int] = {}

    @property
    def is_open(self) -> bool:
        """Whether any stream is still read."""
        return bool(self._open)

    def leave(self, index: int) -> None:
        """Read nothing more of this stream."""
        del self._open[index]

    async def next(self) -> Sequence[tuple[int, Tokens]]:
        """What has come, by index: at least one item. Raises ``StreamBroken``, and whatever a stream raises."""
        try:
            if len(self._open) == 1 and not self._coming:
                ((index, stream),) = self._open.items()
                return ((index, await anext(stream)),)
            return await self._next_of_several()
        except StopAsyncIteration:
            raise StreamBroken("a sequence ended without an end") from None

    async def close(self) -> None:
        """Give up what is on its way."""
        tasks, self._coming = list(self._coming), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _next_of_several(self) -> Sequence[tuple[int, Tokens]]:
        awaited = set(self._coming.values())
        for index, stream in self._open.items():
            if index not in awaited:
                self._coming[asyncio.ensure_future(_item_of(stream))] = index
        done, _ = await asyncio.wait(self._coming, return_when=asyncio.FIRST_COMPLETED)
        arrived: list[tuple[int, Tokens]] = []
        for task in sorted(done, key=self._coming.__getitem__):
            # One that failed raises here, and stays with the others for ``close`` to collect.
            item = task.result()
            arrived.append((self._coming.pop(task), item))
        return arrived


@asynccontextmanager
async def reading(streams: Sequence[TokenStream]) -> AsyncIterator[FanIn]:
    """Read the streams, and leave nothing behind."""
    fan_in = FanIn(streams)
    try:
        yield fan_in
    finally:
        await fan_in.close()


async def _item_of(stream: AsyncIterator[Tokens]) -> Tokens:
    return await anext(stream)
