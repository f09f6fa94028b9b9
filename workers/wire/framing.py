"""Frames out of a stream of bytes, without I/O: a 4-byte big-endian length, then one encoded message.

Memory is bounded by the frame limit plus one read: a length over the limit is refused as soon as its four bytes are
there. Each byte is copied once into the buffer and once out of it, however the stream was cut into pieces.
"""

from __future__ import annotations

from workers.wire.codec import WireError, pack_message, unpack_message
from workers.wire.messages import Message

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Room for the largest tokenizer; a plan with 64 prompts of 8192 tokens takes 2 MiB."""

_HEADER_BYTES = 4


def encode(message: Message) -> bytes:
    """The whole frame, length prefix included. Raises ``WireError`` naming the field that cannot be encoded."""
    payload = pack_message(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"{type(message).__name__} takes {len(payload)} bytes; a frame holds {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


def decode(frame: bytes) -> Message:
    """The inverse of ``encode``, for a frame stored whole. Raises ``WireError``."""
    messages = FrameDecoder().feed(frame)
    if len(messages) != 1 or _frame_bytes(frame) != len(frame):
        raise WireError(f"{len(frame)} bytes are not one whole frame")
    return messages[0]


class FrameDecoder:
    """Turns bytes into messages. After a ``WireError`` the stream has no meaning: every later call raises as well.

    ``max_frame_bytes`` may be raised between calls, and so may ``most_messages``, how many are still completed: a peer
    that has not proved itself gets small frames only, and what it sends behind the proof waits until it is known.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, most_messages: int | None = None) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.most_messages = most_messages
        self._buffer = bytearray()
        self._broken: str | None = None

    @property
    def holds_partial_frame(self) -> bool:
        """Whether the stream stopped within a frame (a peer may not rest there for long)."""
        return len(self._buffer) > 0

    def feed(self, data: bytes) -> list[Message]:
        """Take in ``data`` and return the messages that it completed. Raises ``WireError`` on anything wrong."""
        if self._broken is not None:
            raise WireError(self._broken)
        self._buffer += data
        try:
            return self._complete_messages()
        except WireError as error:
            self._broken = str(error)
            self._buffer.clear()
            raise

    def _complete_messages(self) -> list[Message]:
        messages: list[Message] = []
        buffer = self._buffer
        at = 0
        while len(buffer) - at >= _HEADER_BYTES and (self.most_messages is None or len(messages) < self.most_messages):
            length = int.from_bytes(buffer[at : at + _HEADER_BYTES], "big")
            if length > self.max_frame_bytes:
                raise WireError(f"a frame of {length} bytes is over the limit of {self.max_frame_bytes}")
            end = at + _HEADER_BYTES + length
            if len(buffer) < end:
                break
            messages.append(unpack_message(buffer[at + _HEADER_BYTES : end]))
            at = end
        if self.most_messages is not None:
            self.most_messages -= len(messages)
        del buffer[:at]  # once per call: cutting the front frame by frame would be quadratic
        return messages


def _frame_bytes(frame: bytes) -> int:
    return _HEADER_BYTES + int.from_bytes(frame[:_HEADER_BYTES], "big")
