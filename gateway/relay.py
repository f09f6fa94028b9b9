"""Gateway to gateway: output from driver to origin, cancels from origin to driver, over the wire's frames.

Each gateway listens on its relay address and dials others when it has something for them. A link carries both kinds of
messages both ways, so an origin cancels over the link on which the output comes, and dials only when there is none.
Redis holds the addresses, nothing more: running streams do not depend on it.

What belongs to this very gateway never touches a socket.

A gateway that was killed may be back, under its name, before anybody has missed it. So each process adds a mark of its
own to the name that it gives on a link: a peer that comes with another mark runs nothing of what its former life ran.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from admission.queue import StoreUnavailable
from gateway.backoff import Backoff
from gateway.clock import Clock
from gateway.directory import Directory
from gateway.driver_set import DriverSet
from gateway.frames import FrameConnection, LinkLost
from gateway.handshake import FrameListener
from gateway.origin_link import UNREACHABLE_S, LinkEnd, OriginLink
from gateway.streams import Streams
from workers.wire import CancelSequences, Deliver, Delivery

MOST_LOOKUPS = 1024
"""Cancels that may wait until the directory tells where their driver is."""

_LIFE_MARK = "#"  # no gateway's name has one

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Silence:
    """A peer whose link was lost, and when to give it up. ``peer`` is its name with the mark of its life."""

    peer: str
    timer: asyncio.TimerHandle


class Relay:
    """The links of one gateway to all others. ``run`` owns every task of it."""

    def __init__(
        self,
        *,
        gateway_id: str,
        secret: bytes,
        streams: Streams,
        drivers: DriverSet,
        directory: Directory,
        clock: Clock,
        unreachable_s: float = UNREACHABLE_S,
    ) -> None:
        self.address = ""
        self.door_id = f"{gateway_id}/door"  # in whose name this gateway speaks of what no driver has
        self._gateway_id = gateway_id
        self._name = f"{gateway_id}{_LIFE_MARK}{secrets.token_hex(8)}"
        self._secret = secret
        self._streams = streams
        self._drivers = drivers
        self._directory = directory
        self._clock = clock
        self._unreachable_s = unreachable_s
        self._listener = FrameListener(secret=secret, serve=self._serve)
        self._outgoing: dict[str, OriginLink] = {}
        self._incoming: dict[str, FrameConnection] = {}
        self._silences: dict[str, _Silence] = {}
        self._lookups: asyncio.Queue[tuple[str, tuple[str, ...]]] = asyncio.Queue(MOST_LOOKUPS)
        self._group = asyncio.TaskGroup()

    async def start(self, address: str) -> None:
        """Listen. ``self.address`` is then what origins put into their jobs. Raises ``OSError``."""
        self.address = await self._listener.start(address)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with self._group:
                await self._look_up_drivers()
        finally:
            for silence in self._silences.values():
                silence.timer.cancel()
            await self._listener.close()

    def deliver(self, driver_id: str, origin: str, deliveries: Sequence[Delivery]) -> None:
        """Bring the output of one iteration to ``origin``; returns at once."""
        if origin != self.address:
            self._link(origin).deliver(driver_id, deliveries)
            return
        unwanted = self._streams.deliver(driver_id, deliveries)
        if unwanted:
            self._drivers.cancel(unwanted)

    def release(self, origin: str, sequence_id: str) -> None:
        """No more output of the sequence is made here, and its origin need not be told."""
        link = self._outgoing.get(origin)
        if link is not None:
            link.release(sequence_id)

    def cancel(self, driver_id: str, sequence_ids: Sequence[str]) -> None:
        """Tell ``driver_id``, wherever it is, that nobody wants these; returns at once."""
        gateway_id = driver_id.partition("/")[0]
        if gateway_id == self._gateway_id:
            self._drivers.cancel(sequence_ids)
            return
        connection = self._incoming.get(gateway_id)
        if connection is not None:
            try:
                connection.send(CancelSequences(sequence_ids=tuple(sequence_ids)))
            except LinkLost:
                pass  # its driver dials again or is gone; either way the look-up below finds out
            else:
                return
        try:
            self._lookups.put_nowait((gateway_id, tuple(sequence_ids)))
        except asyncio.QueueFull:
            _log.warning("cancel dropped", gateway=gateway_id, sequences=len(sequence_ids))

    async def _look_up_drivers(self) -> None:
        while True:
            gateway_id, sequence_ids = await self._lookups.get()
            address = await self._address_of(gateway_id)
            if address is not None:
                self._link(address).cancel(sequence_ids)

    async def _address_of(self, gateway_id: str) -> str | None:
        backoff = Backoff()
        while True:
            try:
                return await self._directory.relay_address(gateway_id)
            except StoreUnavailable:
                await backoff.pause()

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def _link(self, address: str) -> OriginLink:
        link = self._outgoing.get(address)
        if link is None:
            link = OriginLink(
                address,
                name=self._name,
                secret=self._secret,
                clock=self._clock,
                unreachable_s=self._unreachable_s,
                converse=self._converse,
            )
            self._outgoing[address] = link
            self._group.create_task(self._run_link(link), name=f"relay to {address}")
        return link

    async def _run_link(self, link: OriginLink) -> None:
        end = await link.run()
        del self._outgoing[link.address]
        if end is LinkEnd.UNREACHABLE:
            _log.warning("origin unreachable, its sequences are cancelled", origin=link.address)
            self._drivers.cancel_origin(link.address)

    # --- both ways ----------------------------------------------------------------------------------------------------

    async def _converse(self, connection: FrameConnection) -> None:
        """Take what the peer says, until the link is lost (raises ``LinkLost``)."""
        while True:
            message = await connection.receive()
            match message:
                case Deliver(driver=driver_id, deliveries=deliveries):
                    unwanted = self._streams.deliver(driver_id, deliveries)
                    if unwanted:
                        connection.send(CancelSequences(sequence_ids=unwanted))
                case CancelSequences(sequence_ids=sequence_ids):
                    self._drivers.cancel(sequence_ids)
                case _:
                    raise LinkLost(f"{connection.peer} sent {type(message).__name__} over the relay")

    # --- incoming -----------------------------------------------------------------------------------------------------

    async def _serve(self, connection: FrameConnection) -> None:
        gateway_id = connection.peer.partition(_LIFE_MARK)[0]
        if self._last_life(gateway_id) not in {None, connection.peer}:
            self._lose_streams_of(gateway_id)
        self._incoming[gateway_id] = connection
        try:
            await self._converse(connection)
        finally:
            if self._incoming.get(gateway_id) is connection:
                del self._incoming[gateway_id]
                timer = asyncio.get_running_loop().call_later(self._unreachable_s, self._give_up, gateway_id)
                self._silences[gateway_id] = _Silence(connection.peer, timer)

    def _last_life(self, gateway_id: str) -> str | None:
        """The name and mark with which the gateway came last, if it has not been given up since. Its silence ends."""
        silence = self._silences.pop(gateway_id, None)
        if silence is not None:
            silence.timer.cancel()
            return silence.peer
        former = self._incoming.get(gateway_id)
        return None if former is None else former.peer

    def _give_up(self, gateway_id: str) -> None:
        """A gateway whose link was lost did not come back."""
        del self._silences[gateway_id]
        self._lose_streams_of(gateway_id)

    def _lose_streams_of(self, gateway_id: str) -> None:
        """What its drivers ran for our clients goes on elsewhere."""
        for stream in self._streams.driven_by(gateway_id):
            stream.lose()
