"""One connection to a worker: its socket, its frames both ways, its phase, and the time it has left.

Everything here is bounded: frames are small until the peer has proved that it knows the secret, a frame once begun has
to end within ``frame_s``, a peer that does not read is given up after ``send_s`` or ``MAX_OUTBOX_FRAMES``.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from workers.wire import MAX_FRAME_BYTES, FrameDecoder, Message, encode

HANDSHAKE_FRAME_BYTES = 4096
"""An ``Auth`` is a hundred bytes and a gateway's name."""

MAX_OUTBOX_FRAMES = 64
"""A driver has a few reports and a tokenizer to read; more means that it does not read."""

_READ_BYTES = 256 * 1024


class Phase(Enum):
    """How far a connection has come."""

    PROVING = auto()  # challenged; everything but the right Auth ends it
    ASKING = auto()  # knows the secret, was sent Hello; may ask for the tokenizer and may become the driver
    DRIVING = auto()  # was accepted by its Welcome; sends plans
    CLOSED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """How long a peer may take, in seconds. A gateway needs its lease from Redis between ``Hello`` and ``Welcome``."""

    handshake_s: float = 5.0
    welcome_s: float = 30.0
    frame_s: float = 10.0
    send_s: float = 30.0


class LinkLost(Exception):
    """The connection cannot go on; the text says why."""


class Link:
    """One accepted connection. All but ``is_open`` belongs to the link thread alone."""

    def __init__(self, sock: socket.socket, times: LinkTimes, now: float) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.nonce = secrets.token_bytes(32)
        self.phase = Phase.PROVING
        self.peer = "unknown"
        self.epoch = 0
        self.max_in_flight = 0
        self.in_flight = 0
        self._times = times
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES)
        self._outbox: deque[memoryview] = deque()
        self._phase_until: float | None = now + times.handshake_s
        self._frame_until: float | None = None
        self._send_until: float | None = None

    @property
    def is_open(self) -> bool:
        """Safe to ask from any thread: the engine leaves out the plans of a link that was lost."""
        return self.phase is not Phase.CLOSED

    @property
    def has_output(self) -> bool:
        return bool(self._outbox)

    @property
    def deadline(self) -> float | None:
        """When ``check_time`` may first fail."""
        return min(filter(None, (self._phase_until, self._frame_until, self._send_until)), default=None)

    def begin_asking(self, peer: str, now: float) -> None:
        self.phase = Phase.ASKING
        self.peer = peer
        self._decoder.max_frame_bytes = MAX_FRAME_BYTES
        self._phase_until = now + self._times.welcome_s

    def begin_driving(self, *, epoch: int, max_in_flight: int) -> None:
        self.phase = Phase.DRIVING
        self.epoch = epoch
        self.max_in_flight = max_in_flight
        self._phase_until = None

    def close(self) -> None:
        self.phase = Phase.CLOSED
        self.sock.close()

    def check_time(self, now: float) -> None:
        """Raises ``LinkLost`` when the peer has taken too long over something."""
        for until, what in (
            (self._phase_until, f"its peer took too long {_WAITING_FOR.get(self.phase, '')}"),
            (self._frame_until, "its peer left a frame unfinished"),
            (self._send_until, "its peer does not read"),
        ):
            if until is not None and now >= until:
                raise LinkLost(what)

    def read(self, now: float) -> list[Message]:
        """The messages that arrived. Raises ``LinkLost`` at the end of the stream, ``WireError`` on a bad frame."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkLost(f"reading failed: {error.strerror}") from None
        if not data:
            raise LinkLost("its peer closed it")
        messages = self._decoder.feed(data)
        if not self._decoder.holds_partial_frame:
            self._frame_until = None
        elif messages or self._frame_until is None:  # another frame has begun
            self._frame_until = now + self._times.frame_s
        return messages

    def send(self, message: Message, now: float) -> None:
        self.send_frame(encode(message), now)

    def send_frame(self, frame: bytes, now: float) -> None:
        """Queue a whole frame and write what the socket takes. Raises ``LinkLost``."""
        if len(self._outbox) >= MAX_OUTBOX_FRAMES:
            raise LinkLost("its peer does not read")
        self._outbox.append(memoryview(frame))
        self.flush(now)

    def flush(self, now: float) -> None:
        """Write what the socket takes now. Raises ``LinkLost``."""
        wrote = False
        while self._outbox:
            try:
                count = self.sock.send(self._outbox[0])
            except BlockingIOError:
                break
            except OSError as error:
                raise LinkLost(f"writing failed: {error.strerror}") from None
            wrote = True
            if count < len(self._outbox[0]):
                self._outbox[0] = self._outbox[0][count:]
            else:
                self._outbox.popleft()
        if not self._outbox:
            self._send_until = None
        elif wrote or self._send_until is None:
            self._send_until = now + self._times.send_s


_WAITING_FOR = {Phase.PROVING: "to prove itself", Phase.ASKING: "between hello and welcome"}
