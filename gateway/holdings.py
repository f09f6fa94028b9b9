"""Which workers this gateway drives: leases taken, links dialled, drivers started, and again when one is lost.

Each worker address has one task that tries, for ever, to take its lease, dial it, and drive it until it is lost. Every
connection has a lease and an epoch of its own, above every epoch that the store or the worker has seen, so what a
former driver still says is refused.

A lease only says who should drive; it may run out unnoticed while Redis is away. The driver goes on then, and the
worker itself refuses it once another gateway has come with a higher epoch. When the lease turns out to be held by
another, the driver claims nothing more and ends with what it runs.

Gateways share workers by patience: who holds more waits longer before it takes another. And when Redis comes back
without its data, the leases are gone but their holders are not: who held none waits until they have come for theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import structlog

from admission.limits import Limits
from admission.queue import StoreUnavailable
from admission.redis_queue import RedisQueue
from admission.scheduler import Scheduler
from gateway.backoff import Backoff
from gateway.cluster_view import ClusterView
from gateway.directory import Directory
from gateway.driver import Driver, DriverParts
from gateway.driver_log import DriverLog
from gateway.driver_set import DriverSet
from gateway.forecast import DriverSpeed
from gateway.frames import LinkLost
from gateway.line_speed import LineSpeeds
from gateway.links import PROGRESS_TIMEOUT_S, WorkerLink
from gateway.queues import Queues
from gateway.tasks import run_beside
from workers.wire import Hello, ModelCard, TokenizerFiles

POLL_S = 1.0
"""How often to ask for a worker that another gateway holds."""

MOST_REDIAL_S = 1.0
"""Longest pause before a worker is dialled again: a model that has loaded should not wait longer to be served."""

PATIENCE_S = 0.5
MOST_PATIENCE_S = 2.0
"""Wait before taking another worker, per worker held, and at most: a gateway that holds fewer comes first, although it
may have started a little later."""

RENEW_S = 1.0
"""How often a lease, and the model's place in the directory, is renewed."""

RETURN_S = 3.0
"""How long the holder of a lease that is gone without a word has to come back for it: it tries once a second, and a try
at a store that does not answer takes another."""

CLEAR_TIMEOUT_S = 3.0
"""How long a lost driver's traces in the store may keep its worker from being driven again; the rest is reaped."""

_log = structlog.get_logger(__name__)


class _Said(Enum):
    """What the log knows of a worker."""

    DRIVING = auto()
    LOST = auto()
    WAITING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingsParts:
    """What the holdings of a gateway work with. ``schedule`` makes the scheduler for a worker by its hello."""

    directory: Directory
    queues: Queues
    drivers: DriverSet
    view: ClusterView
    speeds: LineSpeeds
    driver_parts: DriverParts
    schedule: Callable[[Hello], tuple[Scheduler, Limits]]


class Holdings:
    """The workers at ``addresses``, as far as this gateway holds them."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        gateway_id: str,
        secret: bytes,
        parts: HoldingsParts,
        progress_timeout_s: float = PROGRESS_TIMEOUT_S,
    ) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))
        self._gateway_id = gateway_id
        self._secret = secret
        self._parts = parts
        self._progress_timeout_s = progress_timeout_s
        self._running: dict[str, Driver] = {}
        self._is_stopping = False
        self._taking = asyncio.Lock()
        self._last_said: dict[str, _Said] = {}
        self._held_elsewhere: dict[str, bool] = dict.fromkeys(self._addresses, False)
        self._num_held = 0
        self._none_held = asyncio.Event()
        self._none_held.set()

    async def run(self) -> None:
        """Hold what can be held, until cancelled or stopped."""
        async with asyncio.TaskGroup() as group:
            for address in self._addresses:
                group.create_task(self._hold(address), name=f"hold {address}")

    def stop(self) -> None:
        """Take no more workers; drivers finish what they run."""
        self._is_stopping = True
        for driver in self._running.values():
            driver.stop()

    def hand_over(self) -> None:
        """As ``stop``, but what runs is given back for others to continue."""
        self.stop()
        for driver in self._running.values():
            driver.hand_over()

    def waits_for(self, address: str) -> bool:
        """Whether another gateway held the worker when this one last asked."""
        return self._held_elsewhere[address]

    async def all_ended(self) -> None:
        """Wait until no worker is held here."""
        await self._none_held.wait()

    async def _hold(self, address: str) -> None:
        backoff = Backoff(first_s=0.1, most_s=MOST_REDIAL_S)
        while not self._is_stopping:
            try:
                epoch = await self._take(address)
                if epoch is None:
                    await asyncio.sleep(POLL_S)
                    continue
                await self._drive(address, epoch, backoff)
            except LinkLost as lost:
                self._tell_lost(address, str(lost))
            except StoreUnavailable as error:
                _log.warning("worker not taken", worker=address, reason=str(error))
            except Exception:  # noqa: BLE001 (a fault in one driver must not end the others; it is logged whole)
                _log.exception("driver failed", worker=address)
            if not self._is_stopping:
                await backoff.pause()

    async def _take(self, address: str) -> int | None:
        """A lease on the worker, one worker after the other, with patience."""
        if self._held_elsewhere[address] and not await self._parts.directory.knows_worker(address):
            await asyncio.sleep(RETURN_S)
        async with self._taking:
            await asyncio.sleep(min(self._num_held * PATIENCE_S, MOST_PATIENCE_S))
            epoch = await self._parts.directory.take_worker(address)
            self._held_elsewhere[address] = epoch is None
            if epoch is not None:
                self._num_held += 1
                self._none_held.clear()
            return epoch

    async def _drive(self, address: str, epoch: int, backoff: Backoff) -> None:
        """Drive one worker over one connection, and give its lease back at the end of it."""
        try:
            link = await WorkerLink.open(
                address,
                gateway_id=self._gateway_id,
                secret=self._secret,
                progress_timeout_s=self._progress_timeout_s,
            )
            try:
                await self._drive_link(address, link, epoch, backoff)
            finally:
                await link.close()
        finally:
            await self._release(address)
            self._num_held -= 1
            if self._num_held == 0:
                self._none_held.set()

    async def _drive_link(self, address: str, link: WorkerLink, epoch: int, backoff: Backoff) -> None:
        parts = self._parts
        if link.hello.last_epoch >= epoch:  # the worker has seen more than the store remembers
            epoch = await self._epoch_above(address, link.hello.last_epoch)
        files = await link.tokenizer_files()
        scheduler, limits = parts.schedule(link.hello)
        card = _card_within(limits, link.hello.card)
        await parts.directory.publish_model(card, files)
        queue = parts.queues.of(card.name)
        driver_id = f"{self._gateway_id}/{address}"
        await parts.directory.publish_speed(address, DriverSpeed(model=card.name, tokens_per_s=None))
        await queue.forget_driver(driver_id)  # what an earlier process of this name left
        if self._is_stopping:
            return
        link.welcome(epoch=epoch, max_in_flight=limits.max_in_flight)
        backoff.reset()
        speed = parts.speeds.begin(card.name)
        driver = Driver(
            driver_id=driver_id,
            link=link,
            scheduler=scheduler,
            queue=queue,
            speed=speed,
            parts=parts.driver_parts,
            log=self._log_of(driver_id, link, epoch, scheduler),
        )
        _log.info("driving", worker=address, model=card.name, epoch=epoch, slots=limits.max_slots)
        try:
            with self._known(address, driver, card), self._counted(limits):
                await run_beside(driver.run(), self._keep_lease(address, link, driver, card, files))
        except Exception:
            await self._clear(queue, driver_id)
            raise
        finally:
            parts.speeds.end(card.name, speed)
        await self._clear(queue, driver_id)

    def _log_of(self, driver_id: str, link: WorkerLink, epoch: int, scheduler: Scheduler) -> DriverLog | None:
        parts = self._parts.driver_parts
        if parts.recorder is None:
            return None
        return DriverLog(
            parts.recorder, driver_id=driver_id, epoch=epoch, hello=link.hello, scheduler=scheduler, clock=parts.clock
        )

    @contextlib.contextmanager
    def _known(self, address: str, driver: Driver, card: ModelCard) -> Iterator[None]:
        """Origins can cancel at this driver, and its model is served, while it runs."""
        self._last_said[address] = _Said.DRIVING
        self._running[address] = driver
        self._parts.drivers.add(driver.driver_id, driver)
        self._parts.view.driver_began(card)
        try:
            yield
        finally:
            self._parts.view.driver_ended(card)
            self._parts.drivers.remove(driver.driver_id)
            del self._running[address]

    @contextlib.contextmanager
    def _counted(self, limits: Limits) -> Iterator[None]:
        """What the worker has counts among what is driven here, while it is."""
        metrics = self._parts.driver_parts.metrics.workers
        slots, kv_blocks = limits.max_slots, limits.kv_blocks or 0
        metrics.slots.inc(slots)
        metrics.kv_blocks.inc(kv_blocks)
        try:
            yield
        finally:
            metrics.slots.dec(slots)
            metrics.kv_blocks.dec(kv_blocks)

    async def _epoch_above(self, address: str, last_epoch: int) -> int:
        epoch = await self._parts.directory.take_worker(address, above_epoch=last_epoch)
        if epoch is None:
            raise LinkLost(f"{address} was taken by another gateway")
        return epoch

    async def _keep_lease(
        self, address: str, link: WorkerLink, driver: Driver, card: ModelCard, files: TokenizerFiles
    ) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                if not await self._renew(address, link.epoch):
                    _log.warning("lease lost to another gateway", worker=address)
                    driver.stop()
                    return
                await self._parts.directory.publish_model(card, files)
                await self._parts.directory.publish_speed(address, driver.speed)
            except StoreUnavailable:
                continue  # the driver goes on: see the module

    async def _renew(self, address: str, epoch: int) -> bool:
        directory = self._parts.directory
        return await directory.renew_worker(address) or (
            await directory.take_worker(address, above_epoch=epoch) is not None
        )

    async def _clear(self, queue: RedisQueue, driver_id: str) -> None:
        """Let the store know what became of the driver's sequences, then that it is gone."""
        try:
            async with asyncio.timeout(CLEAR_TIMEOUT_S):
                await self._parts.driver_parts.acts.drained()
                await queue.forget_driver(driver_id)
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("driver not cleared from the store", driver=driver_id, reason=str(error))

    def _tell_lost(self, address: str, reason: str) -> None:
        """While a worker loads, or is away, every attempt fails alike: that is said once, and is no loss."""
        last = self._last_said.get(address)
        if last is _Said.DRIVING:
            _log.warning("worker lost", worker=address, reason=reason)
        elif last is not _Said.WAITING:
            _log.info("waiting for worker", worker=address, reason=reason)
        self._last_said[address] = _Said.LOST if last is _Said.DRIVING else _Said.WAITING

    async def _release(self, address: str) -> None:
        with contextlib.suppress(StoreUnavailable):  # then the lease runs out by itself
            await self._parts.directory.release_worker(address)


def _card_within(limits: Limits, card: ModelCard) -> ModelCard:
    """The card with the context that the blocks in use can hold: a longer request would be queued and never start."""
    if limits.kv_blocks is None:
        return card
    return replace(card, context_length=min(card.context_length, limits.kv_blocks * limits.block_size))
