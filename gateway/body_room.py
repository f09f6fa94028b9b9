"""Memory for the bodies of all requests together.

One body is bounded, and so are connections; their product is more than a machine has. So bytes are counted from their
arrival until the request is in the queue, where they have become tokens, or refused. Beyond the bound a request is
told to go elsewhere: 503, as where there are too many connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import Reason, Refused


class BodyRoom:
    """Room for ``max_bytes`` of bodies at once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """What one request takes of it, given back at the end of the block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.num_bytes

    def take(self, num_bytes: int) -> None:
        if self.held_bytes + num_bytes > self._max_bytes:
            raise Refused(Reason.TOO_MANY_CONNECTIONS, "This gateway has as many request bodies to read as it may.")
        self.held_bytes += num_bytes


@dataclass(slots=True)
class BodyShare:
    """The bytes of one request's body so far."""

    room: BodyRoom
    num_bytes: int = 0

    def take(self, num_bytes: int) -> None:
        """More of the body has come. Raises ``Refused`` when there is no room for it."""
        self.room.take(num_bytes)
        self.num_bytes += num_bytes
