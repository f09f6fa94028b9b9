"""What a gateway does every moment, requests or none: be seen, see the others, look after the queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from admission.queue import StoreUnavailable
from gateway.cluster_view import ClusterView
from gateway.directory import Directory
from gateway.driver_set import DriverSet
from gateway.errors import Reason
from gateway.forecast import Forecast
from gateway.forgotten import ELSEWHERE_BEATS, WAITING_BEATS, Forgotten
from gateway.line_speed import LineSpeeds
from gateway.moves import Moves
from gateway.queue_gauges import QueueGauges
from gateway.queues import Queues
from gateway.relay import Relay
from gateway.streams import Streams
from gateway.tasks import run_beside

BEAT_S = 1.0
SAMPLE_S = 0.25

NO_WORKER_GRACE_US = 30_000_000
"""How long accepted requests wait for a model that nobody serves any more: a worker that restarts is back by then."""

_log = structlog.get_logger(__name__)


class Heartbeat:
    """``run`` beats until cancelled. A store that does not answer stops nothing here.

    ``workers`` are the addresses of all workers of the cluster: with as many drivers here, no other gateway runs
    anything.
    """

    def __init__(
        self,
        *,
        relay: Relay,
        directory: Directory,
        queues: Queues,
        streams: Streams,
        moves: Moves,
        drivers: DriverSet,
        workers: Sequence[str],
        speeds: LineSpeeds,
        forecast: Forecast,
        view: ClusterView,
        gauges: QueueGauges,
    ) -> None:
        self._relay = relay
        self._directory = directory
        self._queues = queues
        self._streams = streams
        self._moves = moves
        self._drivers = drivers
        self._workers = tuple(dict.fromkeys(workers))
        self._speeds = speeds
        self._forecast = forecast
        self._view = view
        self._gauges = gauges
        self._forgotten = Forgotten()

    async def run(self) -> None:
        await run_beside(self._beat(), self._sample())

    async def _beat(self) -> None:
        while True:
            try:
                await self._speak_to_store()
            except StoreUnavailable as error:
                self._reached(error)
            else:
                self._reached(None)
            self._give_up_unserved()
            await asyncio.sleep(BEAT_S)

    async def _speak_to_store(self) -> None:
        await self._directory.announce(self._relay.address)
        self._view.list_models(await self._directory.models())
        self._forecast.take_speeds(await self._directory.speeds(self._workers))
        for card in self._view.cards():
            queue = self._queues.of(card.name)
            if not await queue.reconcile():
                _log.error("the queue had lost keys in Redis, and was begun anew", model=card.name)
            for driver_id in await queue.reap():
                _log.warning("silent driver forgotten", driver=driver_id, model=card.name)
        await self._move_forgotten()

    async def _move_forgotten(self) -> None:
        open_here = self._streams.all_open()
        streams = [one for one in open_here if one.is_placed and not self._drivers.runs(one.sequence_id)]
        unknown: set[str] = set()
        lost: set[str] = set()
        for model in dict.fromkeys(stream.model for stream in streams):
            queue = self._queues.of(model)
            missing = await queue.unknown([stream.sequence_id for stream in streams if stream.model == model])
            lost |= await queue.lost(sorted(missing))
            unknown |= missing
        patience = WAITING_BEATS if len(self._drivers) == len(self._workers) else ELSEWHERE_BEATS
        for stream in self._forgotten.observe(streams, unknown, lost, waiting_beats=patience):
            _log.warning("request forgotten by the store", sequence=stream.sequence_id, model=stream.model)
            if stream.sequence_id in lost:
                self._moves.take_started(stream)
            else:
                self._moves.take_forgotten(stream)

    async def _sample(self) -> None:
        """The gauges keep their last values while the store is away: nothing better is known."""
        while True:
            try:
                stats = {model: await queue.stats() for model, queue in self._queues.by_model().items()}
            except StoreUnavailable as error:
                self._reached(error)
                self._speeds.pause()
            else:
                self._gauges.show(stats.values())
                for model, stat in stats.items():
                    self._speeds.sample(model, stat.requests)
                    self._forecast.sample(model, stat)
            await asyncio.sleep(SAMPLE_S)

    def _reached(self, error: StoreUnavailable | None) -> None:
        reachable = error is None
        if reachable != self._view.store_reachable:
            self._view.store_reachable = reachable
            if reachable:
                _log.info("store reachable")
            else:
                _log.error("store unreachable", error=str(error))

    def _give_up_unserved(self) -> None:
        for stream in self._streams.waiting():
            if self._view.unserved_for_us(stream.model) > NO_WORKER_GRACE_US:
                self._streams.cut(stream, Reason.NO_WORKER, f"No worker serves {stream.model} any more.")
