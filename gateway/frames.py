"""Framed connections: the wire's messages over asyncio transports, towards workers and between gateways.

Whatever goes wrong with a connection (refused, closed, silent past its time, nonsense, a wrong secret, a peer that does
not read) is one exception, ``LinkLost``, with one sentence for the log. After it the connection is of no use.

Messages are taken in one of two ways: waited for, one at a time, as a conversation is; or handed on in the very call in
which their bytes come, as on the path of a step, where a task that is woken for each report costs more than the report.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar, cast

from workers.wire import MAX_FRAME_BYTES, FrameDecoder, Message, Refusal, WireError, encode

MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""What may wait for a peer to read it. A peer that is so far behind does not read at all."""

MOST_UNRECEIVED = 64
"""Messages that may wait here for whoever receives them; with more, nothing is read until they are taken."""

CLOSE_TIMEOUT_S = 1.0
"""For a connection to send its rest and end."""

M = TypeVar("M")


class LinkLost(Exception):
    """The peer is gone, silent, or not one to talk to; the text is a sentence for the log."""


class FrameConnection(asyncio.Protocol):
    """One connection: messages out at once (bounded), messages in one at a time or as they come.

    ``on_open`` is called when it is made.
    """

    def __init__(
        self, *, peer: str, decoder: FrameDecoder, on_open: Callable[[FrameConnection], None] | None = None
    ) -> None:
        self.peer = peer
        self._decoder = decoder
        self._on_open = on_open
        self._transport: asyncio.Transport
        self._arrived: deque[Message] = deque()
        self._take: Callable[[Sequence[Message]], None] | None = None
        self._stirred = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._end: Exception | None = None  # why nothing more comes
        self._abort_reason: str | None = None

    # --- messages -----------------------------------------------------------------------------------------------------

    def trust(self) -> None:
        """The peer has proved itself: frames of any legal length from now on, those behind the proof included."""
        self._decoder.max_frame_bytes, self._decoder.most_messages = MAX_FRAME_BYTES, None
        self.data_received(b"")

    async def receive(self) -> Message:
        """The next message, however long it takes. Raises ``LinkLost``."""
        while not self._arrived:
            await self._wait()
        message = self._arrived.popleft()
        if not self._arrived:
            self._transport.resume_reading()
        self._heed_refusal(message)
        return message

    async def expect(self, kind: type[M], timeout_s: float) -> M:
        """The next message, which must be of ``kind`` and come in time. Raises ``LinkLost``."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self.receive()
        except TimeoutError:
            raise self._lost(f"sent no {kind.__name__} within {timeout_s} s") from None
        if not isinstance(message, kind):
            raise self._lost(f"sent {type(message).__name__} where {kind.__name__} was due")
        return message

    async def hand_on(self, take: Callable[[Sequence[Message]], None]) -> NoReturn:
        """Call ``take`` with what comes together, in the call that brings it, until the link is lost.

        Raises ``LinkLost``, or what ``take`` raised.
        """
        self._take = take
        try:
            if self._arrived:
                self._pass_on(tuple(self._arrived))
                self._arrived.clear()
                self._transport.resume_reading()
            while True:
                await self._wait()
        finally:
            self._take = None

    def send(self, message: Message) -> None:
        """Hand ``message`` to the transport; returns at once. Raises ``LinkLost``, also when the peer does not read."""
        if self._transport.is_closing():
            raise self._lost("closed the connection")
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort(f"reads nothing: {MAX_UNSENT_BYTES} bytes wait for it")
            raise self._lost("does not read")
        self._transport.write(encode(message))

    async def drained(self, timeout_s: float) -> None:
        """Wait until little is unsent. Raises ``LinkLost``, also when that takes longer than ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._writable.wait()
        except TimeoutError:
            self.abort(f"has read nothing for {timeout_s} s")
            raise self._lost("does not read") from None

    def abort(self, reason: str) -> None:
        """Drop the connection now: who receives gets ``LinkLost`` with ``reason``."""
        if self._abort_reason is None:
            self._abort_reason = reason
        self._transport.abort()

    async def close(self) -> None:
        """Send what is unsent, within ``CLOSE_TIMEOUT_S``, and close."""
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()

    # --- called by the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except WireError as error:
            self._finish(self._lost(f"sent nonsense: {error}"))
            return
        if self._take is not None:
            self._pass_on(messages)
            return
        self._arrived.extend(messages)
        self._stirred.set()
        if len(self._arrived) > MOST_UNRECEIVED:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()  # what is sent now raises
        self._closed.set()
        self._finish(self._lost("closed the connection" if exc is None else str(exc)))

    # --- details ------------------------------------------------------------------------------------------------------

    def _pass_on(self, messages: Sequence[Message]) -> None:
        """What goes wrong is the business of who waits in ``hand_on``, not of the transport."""
        if self._take is None or self._end is not None:
            return
        try:
            for message in messages:
                self._heed_refusal(message)
            self._take(messages)
        except Exception as error:  # noqa: BLE001 (raised again by ``hand_on``)
            self._finish(error)

    async def _wait(self) -> None:
        """Until something has come. Raises why nothing more comes."""
        if self._end is not None:
            raise self._end
        self._stirred.clear()
        await self._stirred.wait()

    def _finish(self, end: Exception) -> None:
        if self._end is None:
            self._end = end
        self._stirred.set()

    def _heed_refusal(self, message: Message) -> None:
        if isinstance(message, Refusal):
            raise self._lost(f"refuses: {message.message}")

    def _lost(self, problem: str) -> LinkLost:
        return LinkLost(f"{self.peer} {self._abort_reason or problem}")
