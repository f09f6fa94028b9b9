"""How a framed connection begins: one end dials and proves that it knows the secret, the other listens and lets it in.

The listener sends a challenge; the answer is a digest of it under the secret that both share, with the peer's name.
Until then the peer is a stranger: its frames are short, and one at a time.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from gateway.frames import CLOSE_TIMEOUT_S, FrameConnection, LinkLost
from workers.wire import (
    WIRE_VERSION,
    Auth,
    Challenge,
    FrameDecoder,
    Refusal,
    TcpAddress,
    UnixAddress,
    auth_digest,
    parse_address,
)

HANDSHAKE_TIMEOUT_S = 5.0
"""Connecting and proving the secret, on either end. A listening peer answers in milliseconds."""

MAX_STRANGER_FRAME_BYTES = 4096
"""The longest frame from a peer that has not proved yet that it knows the secret."""

_log = structlog.get_logger(__name__)


async def dial(address: str, *, name: str, secret: bytes, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> FrameConnection:
    """Connect to ``address`` and answer its challenge as ``name``. Raises ``LinkLost``."""
    try:
        async with asyncio.timeout(timeout_s):
            connection = await _connect(address)
    except TimeoutError:
        raise LinkLost(f"{address} did not accept a connection within {timeout_s} s") from None
    except OSError as error:
        raise LinkLost(f"{address} cannot be reached: {error.strerror or error}") from None
    except ValueError as error:
        raise LinkLost(str(error)) from None
    try:
        challenge = await connection.expect(Challenge, timeout_s)
        if challenge.version != WIRE_VERSION:
            raise LinkLost(f"{address} speaks version {challenge.version} of the wire, this gateway {WIRE_VERSION}")
        connection.send(Auth(version=WIRE_VERSION, digest=auth_digest(secret, challenge.nonce), peer=name))
    except BaseException:
        connection.abort("the handshake failed")
        raise
    return connection


async def _connect(address: str) -> FrameConnection:
    loop = asyncio.get_running_loop()
    connection = FrameConnection(peer=address, decoder=FrameDecoder())
    match parse_address(address):
        case UnixAddress(path=path):
            await loop.create_unix_connection(lambda: connection, path)
        case TcpAddress(host=host, port=port):
            await loop.create_connection(lambda: connection, host, port)
    return connection


class FrameListener:
    """Accepts connections, lets in who knows the secret, and hands each to ``serve`` until that returns."""

    def __init__(self, *, secret: bytes, serve: Callable[[FrameConnection], Awaitable[None]]) -> None:
        self._secret = secret
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], FrameConnection] = {}

    async def start(self, address: str) -> str:
        """Listen on ``address``; the result is the address with its real port. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        match parse_address(address):
            case UnixAddress(path=path):
                Path(path).unlink(missing_ok=True)  # noqa: ASYNC240 (a local name, once)
                self._server = await loop.create_unix_server(self._new_connection, path)
                Path(path).chmod(0o600)  # noqa: ASYNC240 (as above)
                return address
            case TcpAddress(host=host, port=port):
                self._server = await loop.create_server(self._new_connection, host, port)
                return str(TcpAddress(host, self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Stop listening, drop every connection, and wait until those who served them have seen it."""
        if self._server is not None:
            self._server.close()
        for connection in self._open.values():
            connection.abort("this gateway stops")
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_TIMEOUT_S)

    def _new_connection(self) -> FrameConnection:
        decoder = FrameDecoder(MAX_STRANGER_FRAME_BYTES, most_messages=1)
        return FrameConnection(peer="a stranger", decoder=decoder, on_open=self._accept)

    def _accept(self, connection: FrameConnection) -> None:
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
