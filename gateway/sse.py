"""Server-sent events: how a stream is written. There is one write for each batch of tokens that arrives.

The first write sends the headers: until then the request can still become any other answer. A client that reads too
slowly is given what the transport buffers (64 KiB), then ``slow_client_s`` to take some of it.
"""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import StreamWriter

STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx must pass every chunk on at once
}


class ClientGone(Exception):
    """The connection is closed; nobody reads."""


class ClientTooSlow(Exception):
    """The client took nothing for the time it is given."""


class SseResponse:
    """The answer's stream to one client."""

    def __init__(self, request: web.Request, headers: dict[str, str], *, slow_client_s: float) -> None:
        self._request = request
        self._slow_client_s = slow_client_s
        self._protocol: BaseProtocol | None = None  # once the headers are out, and chunks may follow
        self.response = web.StreamResponse(headers=STREAM_HEADERS | headers)

    @property
    def started(self) -> bool:
        """Whether the headers are out: then an error can only be an event."""
        return self.response.prepared

    @property
    def is_congested(self) -> bool:
        """Whether the client has so much still to take that more would have to wait."""
        return bool(self._request.protocol.writing_paused)

    async def write(self, events: bytes) -> None:
        """Send events. Raises ``ClientGone`` or ``ClientTooSlow``."""
        try:
            if not self.started:
                await self._start()
            if self.is_congested:
                async with asyncio.timeout(self._slow_client_s):
                    await self._request.writer.drain()
            # Not drained here: the check above keeps the buffer at the transport's bound plus these events.
            await cast(StreamWriter, self._request.writer).write(events, drain=False)
        except TimeoutError:
            raise ClientTooSlow from None
        except ConnectionError:
            raise ClientGone from None

    def keeps_up(self) -> bool:
        """Whether the stream has begun and the client takes what is sent: then ``write_at_once`` may be called."""
        protocol = self._protocol
        if protocol is None or protocol.writing_paused:
            return False
        transport = protocol.transport
        return transport is not None and not transport.is_closing()

    def write_at_once(self, events: bytes) -> None:
        """As ``write``, of a client that keeps up: a chunk of HTTP goes straight to the transport."""
        if self._protocol is not None and self._protocol.transport is not None:
            self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(events), events))

    async def _start(self) -> None:
        """Make the headers ready: they go out with the first events."""
        writer = cast(StreamWriter, await self.response.prepare(self._request))
        if writer.chunked:
            self._protocol = self._request.protocol

    def cut(self) -> None:
        """Drop the connection with all that is buffered, so that the client cannot take the stream for whole."""
        if self._request.transport is not None:
            self._request.transport.abort()
