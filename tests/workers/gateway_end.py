"""A gateway's end of a link to a worker, on a blocking socket: says what a test wants, well-behaved or not."""

from __future__ import annotations

import socket
from collections import deque
from pathlib import Path
from typing import TypeVar

from workers.wire import (
    WIRE_VERSION,
    Auth,
    Challenge,
    FrameDecoder,
    Hello,
    Message,
    Refusal,
    Welcome,
    auth_digest,
    encode,
)

M = TypeVar("M", bound=Message)

_TIMEOUT_S = 5.0


class Closed(Exception):
    """The worker closed the link."""


class GatewayEnd:
    """One connection. Each wait is bounded; ``TimeoutError`` fails the test."""

    def __init__(self, path: Path, *, peer: str = "gateway-0") -> None:
        self.peer = peer
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(path))
        self._decoder = FrameDecoder()
        self._received: deque[Message] = deque()

    def close(self) -> None:
        self.sock.close()

    def send(self, *messages: Message) -> None:
        self.sock.sendall(b"".join(encode(message) for message in messages))

    def receive(self, kind: type[M]) -> M:
        """The next message, which has to be of this kind. Raises ``Closed``."""
        while not self._received:
            try:
                data = self.sock.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                raise Closed
            self._received += self._decoder.feed(data)
        message = self._received.popleft()
        assert isinstance(message, kind), message
        return message

    def prove(self, *, secret: bytes = b"", version: int = WIRE_VERSION) -> None:
        challenge = self.receive(Challenge)
        self.send(Auth(version=version, digest=auth_digest(secret, challenge.nonce), peer=self.peer))

    def drive(self, *, epoch: int = 1, max_in_flight: int = 2, secret: bytes = b"") -> Hello:
        """The whole handshake; the worker's hello."""
        self.prove(secret=secret)
        hello = self.receive(Hello)
        self.send(Welcome(epoch=epoch, max_in_flight=max_in_flight))
        return hello

    def refusal(self) -> str:
        """Why the worker ended the link, which it has to have done."""
        message = self.receive(Refusal).message
        self.await_end()
        return message

    def await_end(self) -> None:
        try:
            while True:
                self.receive(Message)  # type: ignore[arg-type]  # any message
        except Closed:
            pass
