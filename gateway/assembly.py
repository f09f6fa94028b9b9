"""The machinery of one gateway, put together: everything behind the HTTP side, and the order in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass

import redis.asyncio
import structlog

from admission.classes import DEFAULT_CLASSES, PriorityClass
from admission.limits import Limits
from admission.presets import Preset, Progress
from admission.queue import ClassRule, QueueBounds, StoreUnavailable
from admission.scheduler import Scheduler
from admission.standing import WaitingOrderName
from gateway.clock import Clock, monotonic_us
from gateway.cluster_view import ClusterView
from gateway.directory import Directory
from gateway.door_log import DoorLog
from gateway.driver import DriverParts
from gateway.driver_set import DriverSet
from gateway.errors import Reason
from gateway.estimates import Estimates
from gateway.forecast import Forecast
from gateway.heartbeat import Heartbeat
from gateway.holdings import Holdings, HoldingsParts
from gateway.line_speed import LineSpeeds
from gateway.links import PROGRESS_TIMEOUT_S
from gateway.machinery import Machinery, MachineryParts
from gateway.metrics import Metrics
from gateway.moves import Moves
from gateway.origin_link import UNREACHABLE_S
from gateway.queue_gauges import QueueGauges
from gateway.queues import Queues
from gateway.recording import Recorder
from gateway.relay import Relay
from gateway.store_acts import StoreActs
from gateway.streams import Streams
from gateway.tasks import run_beside
from workers.wire import Hello

MAX_IN_FLIGHT = 2
"""Plans on a worker at once: the second hides the gateway's own time, a third would only delay what it decides."""

MAX_MOVES = 2
"""How often a request may go on elsewhere: one that itself kills workers takes three with it, not all."""

CUT_S = 2.0
"""After the drain time: for typed ends to leave, and for the store and other gateways to be told."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyOptions:
    """What one gateway is told. ``max_slots`` and ``kv_blocks`` cap what a worker has (None: all of it).

    ``bounds`` and ``waiting_order`` are those of the queue, the same in all gateways of a cluster.
    """

    gateway_id: str
    relay_address: str
    workers: tuple[str, ...]
    preset: Preset
    bounds: QueueBounds
    classes: tuple[PriorityClass, ...] = DEFAULT_CLASSES
    waiting_order: WaitingOrderName = WaitingOrderName.AGING
    secret: bytes = b""
    token_budget: int | None = 256
    prefill_chunk: int | None = 128
    preferred_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    max_slots: int | None = None
    kv_blocks: int | None = None
    max_in_flight: int = MAX_IN_FLIGHT
    max_moves: int = MAX_MOVES
    progress_timeout_s: float = PROGRESS_TIMEOUT_S
    unreachable_s: float = UNREACHABLE_S


class Assembly:
    """``start`` listens, ``run`` works until cancelled, ``drain`` ends the work; then ``run`` may be cancelled."""

    def __init__(
        self,
        options: AssemblyOptions,
        *,
        client: redis.asyncio.Redis,
        metrics: Metrics,
        clock: Clock = monotonic_us,
        recorder: Recorder | None = None,
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._estimates = Estimates()
        self._speeds = LineSpeeds(clock=clock)
        self.drivers = DriverSet()
        self.view = ClusterView(clock=clock)
        self.door = None if recorder is None else self._new_door(recorder)
        self.queues = Queues(client, bounds=options.bounds, door=self.door)
        self.directory = Directory(client, gateway_id=options.gateway_id)
        self.forecast = Forecast(options.classes, options.waiting_order, clock=clock)
        self.streams = Streams(clock=clock, metrics=metrics, estimates=self._estimates)
        self.acts = StoreActs(metrics=metrics)
        self.relay = self._new_relay()
        self.moves = self._new_moves()
        self.heartbeat = self._new_heartbeat()
        self.holdings = self._new_holdings()
        self.machinery = self._new_machinery()

    async def start(self) -> None:
        """Listen for other gateways. Raises ``OSError``."""
        await self.relay.start(self._options.relay_address)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await run_beside(
                self.relay.run(), self.acts.run(), self.moves.run(), self.heartbeat.run(), self.holdings.run()
            )
        finally:
            await self.queues.aclose()

    async def drain(self, drain_s: float) -> None:
        """Refuse what is new, let the rest end within ``drain_s``, and cut what has not ended then."""
        self.machinery.drain()
        try:
            async with asyncio.timeout(drain_s):
                await self.streams.all_ended()
                self.holdings.stop()
                await self.holdings.all_ended()
        except TimeoutError:
            _log.warning("drain time is over", streams=len(self.streams))
        for stream in self.streams.all_open():
            self.streams.cut(stream, Reason.DRAINING, "This gateway shut down before the answer was complete.")
        self.holdings.hand_over()
        await _within(CUT_S, self.holdings.all_ended())
        await _within(CUT_S, self.acts.drained())
        with contextlib.suppress(StoreUnavailable):  # then its entry in the directory runs out
            await self.directory.withdraw()

    # --- the parts, each with what it needs of those before it --------------------------------------------------------

    def _new_door(self, recorder: Recorder) -> DoorLog:
        options = self._options
        return DoorLog(
            recorder,
            gateway_id=options.gateway_id,
            classes=options.classes,
            bounds=options.bounds,
            waiting_order=options.waiting_order,
            clock=self._clock,
        )

    def _new_relay(self) -> Relay:
        return Relay(
            gateway_id=self._options.gateway_id,
            secret=self._options.secret,
            streams=self.streams,
            drivers=self.drivers,
            directory=self.directory,
            clock=self._clock,
            unreachable_s=self._options.unreachable_s,
        )

    def _new_moves(self) -> Moves:
        return Moves(
            queues=self.queues,
            streams=self.streams,
            relay=self.relay,
            acts=self.acts,
            metrics=self._metrics,
            clock=self._clock,
            most_moves=self._options.max_moves,
            rules={cls.name: ClassRule.of(cls) for cls in self._options.classes},
        )

    def _new_heartbeat(self) -> Heartbeat:
        options = self._options
        return Heartbeat(
            relay=self.relay,
            directory=self.directory,
            queues=self.queues,
            streams=self.streams,
            moves=self.moves,
            drivers=self.drivers,
            workers=options.workers,
            speeds=self._speeds,
            forecast=self.forecast,
            view=self.view,
            gauges=QueueGauges(self._metrics.queue, bounds=options.bounds, classes=options.classes),
        )

    def _new_holdings(self) -> Holdings:
        options = self._options
        return Holdings(
            options.workers,
            gateway_id=options.gateway_id,
            secret=options.secret,
            progress_timeout_s=options.progress_timeout_s,
            parts=HoldingsParts(
                directory=self.directory,
                queues=self.queues,
                drivers=self.drivers,
                view=self.view,
                speeds=self._speeds,
                driver_parts=DriverParts(
                    relay=self.relay,
                    acts=self.acts,
                    metrics=self._metrics,
                    clock=self._clock,
                    recorder=self._recorder,
                ),
                schedule=self._schedule,
            ),
        )

    def _new_machinery(self) -> Machinery:
        return Machinery(
            MachineryParts(
                queues=self.queues,
                streams=self.streams,
                relay=self.relay,
                moves=self.moves,
                view=self.view,
                directory=self.directory,
                forecast=self.forecast,
                estimates=self._estimates,
                classes={cls.name: cls for cls in self._options.classes},
                clock=self._clock,
                waiting_order=self._options.waiting_order,
            )
        )

    def _schedule(self, hello: Hello) -> tuple[Scheduler, Limits]:
        options = self._options
        slots = _least(_least(hello.max_slots, options.max_slots), options.token_budget)
        limits = Limits(
            max_slots=slots,
            token_budget=options.token_budget,
            prefill_chunk=options.prefill_chunk,
            preferred_sizes=options.preferred_sizes,
            max_queue_delay_us=options.max_queue_delay_us,
            kv_blocks=_least(hello.kv_blocks, options.kv_blocks),
            block_size=hello.block_size,
            host_blocks=hello.host_blocks,
            max_in_flight=options.max_in_flight,
            guaranteed_slots=tuple(
                [(cls.name, cls.share_percent * slots // 100) for cls in options.classes if cls.share_percent > 0]
            ),
            unpreemptible=tuple([cls.name for cls in options.classes if not cls.preemptible]),
        )
        progress = Progress.SWAP if hello.host_blocks > 0 else Progress.RECOMPUTE
        return Scheduler(limits, options.preset, progress=progress), limits


def _least(has: int, cap: int | None) -> int:
    return has if cap is None else min(has, cap)


async def _within(timeout_s: float, waiting: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await waiting
