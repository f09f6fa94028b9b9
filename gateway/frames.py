"""Framed connections: the wire's messages over asyncio streams, towards workers and between gateways.

Whatever goes wrong with a connection (refused, closed, silent past its time, nonsense, a wrong secret, a peer that does
not read) is one exception, ``LinkLost``, with one sentence for the log. After it the connection is of no use.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import structlog

from workers.wire import (
    WIRE_VERSION,
    Auth,
    Challenge,
    FrameDecoder,
    Message,
    Refusal,
    TcpAddress,
    UnixAddress,
    WireError,
    auth_digest,
    encode,
    parse_address,
)

HANDSHAKE_TIMEOUT_S = 5.0
"""Connecting and proving the secret, on either end. A listening peer answers in milliseconds."""

MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""What may wait for a peer to read it. A peer that is so far behind does not read at all."""

MAX_STRANGER_FRAME_BYTES = 4096
"""The longest frame from a peer that has not proved yet that it knows the secret."""

CLOSE_TIMEOUT_S = 1.0
"""For a connection to send its rest and end."""

_READ_BYTES = 256 * 1024

M = TypeVar("M")

_log = structlog.get_logger(__name__)


class LinkLost(Exception):
    """The peer is gone, silent, or not one to talk to; the text is a sentence for the log."""


class FrameConnection:
    """One connection: messages out at once (bounded), messages in one at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, peer: str, decoder: FrameDecoder
    ) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._arrived: deque[Message] = deque()
        self._abort_reason: str | None = None

    def trust(self) -> None:
        """The peer has proved itself: frames of any legal length from now on."""
        self._decoder.max_frame_bytes = FrameDecoder().max_frame_bytes

    async def receive(self) -> Message:
        """The next message, however long it takes. Raises ``LinkLost``."""
        while not self._arrived:
            try:
                data = await self._reader.read(_READ_BYTES)
            except OSError as error:
                raise self._lost(str(error)) from None
            if not data:
                raise self._lost("closed the connection")
            try:
                self._arrived.extend(self._decoder.feed(data))
            except WireError as error:
                raise self._lost(f"sent nonsense: {error}") from None
        message = self._arrived.popleft()
        if isinstance(message, Refusal):
            raise self._lost(f"refuses: {message.message}")
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

    def send(self, message: Message) -> None:
        """Hand ``message`` to the transport; returns at once. Raises ``LinkLost``, also when the peer does not read."""
        if self._writer.is_closing():
            raise self._lost("closed the connection")
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort(f"reads nothing: {MAX_UNSENT_BYTES} bytes wait for it")
            raise self._lost("does not read")
        self._writer.write(encode(message))

    def abort(self, reason: str) -> None:
        """Drop the connection now: ``receive`` raises ``LinkLost`` with ``reason``."""
        if self._abort_reason is None:
            self._abort_reason = reason
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what is unsent, within ``CLOSE_TIMEOUT_S``, and close."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def _lost(self, problem: str) -> LinkLost:
        return LinkLost(f"{self.peer} {self._abort_reason or problem}")


async def dial(address: str, *, name: str, secret: bytes, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> FrameConnection:
    """Connect to ``address`` and answer its challenge as ``name``. Raises ``LinkLost``."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(address)
    except TimeoutError:
        raise LinkLost(f"{address} did not accept a connection within {timeout_s} s") from None
    except OSError as error:
        raise LinkLost(f"{address} cannot be reached: {error.strerror or error}") from None
    except ValueError as error:
        raise LinkLost(str(error)) from None
    connection = FrameConnection(reader, writer, peer=address, decoder=FrameDecoder())
    try:
        challenge = await connection.expect(Challenge, timeout_s)
        if challenge.version != WIRE_VERSION:
            raise LinkLost(f"{address} speaks version {challenge.version} of the wire, this gateway {WIRE_VERSION}")
        connection.send(Auth(version=WIRE_VERSION, digest=auth_digest(secret, challenge.nonce), peer=name))
    except BaseException:
        connection.abort("the handshake failed")
        raise
    return connection


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    match parse_address(address):
        case UnixAddress(path=path):
            return await asyncio.open_unix_connection(path)
        case TcpAddress(host=host, port=port):
            return await asyncio.open_connection(host, port)


class FrameListener:
    """Accepts connections, lets in who knows the secret, and hands each to ``serve`` until that returns."""

    def __init__(self, *, secret: bytes, serve: Callable[[FrameConnection], Awaitable[None]]) -> None:
        self._secret = secret
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], FrameConnection] = {}

    async def start(self, address: str) -> str:
        """Listen on ``address``; the result is the address with its real port. Raises ``OSError``."""
        match parse_address(address):
            case UnixAddress(path=path):
                Path(path).unlink(missing_ok=True)  # noqa: ASYNC240 (a local name, once)
                self._server = await asyncio.start_unix_server(self._accept, path)
                Path(path).chmod(0o600)  # noqa: ASYNC240 (as above)
                return address
            case TcpAddress(host=host, port=port):
                self._server = await asyncio.start_server(self._accept, host, port)
                return str(TcpAddress(host, self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Stop listening, drop every connection, and wait until those who served them have seen it."""
        if self._server is not None:
            self._server.close()
        for connection in self._open.values():
            connection.abort("this gateway stops")
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_TIMEOUT_S)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FrameConnection(reader, writer, peer="a stranger", decoder=FrameDecoder(MAX_STRANGER_FRAME_BYTES))
        task = asyncio.create_task(self._talk(connection))
        self._open[task] = connection
        task.add_done_callback(self._open.pop)

    async def _talk(self, connection: FrameConnection) -> None:
        try:
            await self._admit(connection)
            await self._serve(connection)
        except LinkLost as lost:
            _log.info("link ended", reason=str(lost))  # what losing a peer means, `serve` has said
        except Exception:  # noqa: BLE001 (a fault with one peer must not pass silently, nor reach the others)
            _log.exception("link failed", peer=connection.peer)
        finally:
            await connection.close()

    async def _admit(self, connection: FrameConnection) -> None:
        nonce = secrets.token_bytes(32)
        connection.send(Challenge(version=WIRE_VERSION, nonce=nonce))
        auth = await connection.expect(Auth, HANDSHAKE_TIMEOUT_S)
        if auth.version != WIRE_VERSION:
            problem = f"this gateway speaks version {WIRE_VERSION} of the wire"
        elif not hmac.compare_digest(auth.digest, auth_digest(self._secret, nonce)):
            problem = "the shared secret does not match"
        else:
            connection.peer = auth.peer
            connection.trust()
            return
        connection.send(Refusal(message=problem))
        raise LinkLost(f"{auth.peer} was refused: {problem}")
