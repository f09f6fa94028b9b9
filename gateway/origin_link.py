"""The link that a gateway keeps to another: the output of its drivers there, cancels both ways.

Dialled when there is something to say, kept, and dialled again when lost, with everything in the journal sent once
more. When the other gateway cannot be reached for ``unreachable_s``, its clients are gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum, auto

from gateway.backoff import Backoff
from gateway.clock import Clock
from gateway.frames import FrameConnection, LinkLost
from gateway.handshake import dial
from gateway.journal import Journal
from gateway.scores import values_of
from workers.wire import CancelSequences, Deliver, Delivery

UNREACHABLE_S = 10.0
"""A gateway that restarts has lost its clients anyway; a network that fails for longer has lost them too."""

MOST_PENDING_CANCELS = 4096
"""Cancels that may wait for a connection. What one beyond it would have stopped, the origin's next answer stops."""

_REPLAY_BATCH = 256

_REPLAY_VALUES = 1 << 17
"""Log-probabilities of one message that is sent again: at most 1.6 MB, or those of one delivery."""


class LinkEnd(Enum):
    """Why an outgoing link is not dialled again."""

    NOT_NEEDED = auto()
    UNREACHABLE = auto()


class OriginLink:
    """One outgoing link. ``converse`` reads what the other end says, until it raises ``LinkLost``."""

    def __init__(
        self,
        address: str,
        *,
        name: str,
        secret: bytes,
        clock: Clock,
        unreachable_s: float,
        converse: Callable[[FrameConnection], Awaitable[None]],
    ) -> None:
        self.address = address
        self._name = name
        self._secret = secret
        self._unreachable_s = unreachable_s
        self._converse = converse
        self._journal = Journal(clock=clock)
        self._cancels: deque[str] = deque(maxlen=MOST_PENDING_CANCELS)
        self._connection: FrameConnection | None = None
        self._behind: deque[Deliver] | None = None  # made while what was kept is sent again: it goes after that

    def deliver(self, driver_id: str, deliveries: Sequence[Delivery]) -> None:
        """Send output, now or when the link is up again."""
        for delivery in deliveries:
            self._journal.add(driver_id, delivery)
        if self._connection is not None:
            self._send(self._connection, Deliver(driver=driver_id, deliveries=tuple(deliveries)))
        elif self._behind is not None:
            self._behind.append(Deliver(driver=driver_id, deliveries=tuple(deliveries)))

    def release(self, sequence_id: str) -> None:
        """Keep no output of this sequence any more."""
        self._journal.release(sequence_id)

    def cancel(self, sequence_ids: Sequence[str]) -> None:
        """Send cancels, now or when the link is up again."""
        if self._connection is not None:
            self._send(self._connection, CancelSequences(sequence_ids=tuple(sequence_ids)))
        else:
            self._cancels.extend(sequence_ids)

    async def run(self) -> LinkEnd:
        """Keep the link up, until it is lost and nothing asks for another, or the other gateway is unreachable."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        lost_at_s = loop.time()
        while loop.time() - lost_at_s < self._unreachable_s:
            try:
                connection = await dial(self.address, name=self._name, secret=self._secret)
            except LinkLost:
                await backoff.pause()
                continue
            backoff.reset()
            await self._keep(connection)
            lost_at_s = loop.time()
            if self._journal.is_empty() and not self._cancels:
                return LinkEnd.NOT_NEEDED
            await backoff.pause()
        return LinkEnd.UNREACHABLE

    async def _keep(self, connection: FrameConnection) -> None:
        try:
            await self._resume(connection)
            await self._converse(connection)
        except LinkLost:
            pass  # dialled again by `run`, with everything that may not have arrived
        finally:
            self._connection = self._behind = None
            await connection.close()

    async def _resume(self, connection: FrameConnection) -> None:
        """Send all that was kept, no faster than it is read: it may be more than may be unsent."""
        behind = self._behind = deque()
        for deliver in _batches(self._journal.replay()):
            await connection.drained(self._unreachable_s)
            connection.send(deliver)
        while behind:
            await connection.drained(self._unreachable_s)
            connection.send(behind.popleft())
        self._behind = None
        if self._cancels:
            connection.send(CancelSequences(sequence_ids=tuple(self._cancels)))
            self._cancels.clear()
        self._connection = connection

    def _send(self, connection: FrameConnection, message: Deliver | CancelSequences) -> None:
        try:
            connection.send(message)
        except LinkLost:
            self._connection = None  # `_keep` notices by itself; until then the journal holds what comes


def _batches(replay: Iterable[tuple[str, Delivery]]) -> Iterable[Deliver]:
    """What was kept, in messages of one driver that are bounded in deliveries and in log-probabilities."""
    batch: list[Delivery] = []
    of_driver, values = "", 0
    for driver_id, delivery in replay:
        if batch and (driver_id != of_driver or len(batch) == _REPLAY_BATCH or values >= _REPLAY_VALUES):
            yield Deliver(driver=of_driver, deliveries=tuple(batch))
            batch, values = [], 0
        of_driver = driver_id
        batch.append(delivery)
        values += values_of(delivery)
    if batch:
        yield Deliver(driver=of_driver, deliveries=tuple(batch))
