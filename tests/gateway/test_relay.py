"""Gateway to gateway: output and cancels find their way, and a gateway that is gone holds nobody's slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from admission.queue import StoreUnavailable
from gateway.clock import monotonic_us
from gateway.dispatch import Tokens
from gateway.driver_set import DriverSet
from gateway.errors import Reason
from gateway.estimates import Estimates
from gateway.metrics import Metrics
from gateway.relay import Relay
from gateway.stream import Stream
from gateway.streams import Streams
from tests.gateway.fake_queue import claim_of
from tests.gateway.small_cluster import read_all
from tests.support import wait_until
from workers.wire import Delivery


class Addresses:
    """A directory of relays, shared by all."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.is_away = False

    async def relay_address(self, gateway_id: str) -> str | None:
        if self.is_away:
            raise StoreUnavailable("away")
        return self.known.get(gateway_id)


class RecordingDriver:
    """What origins asked of it."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.lost_origins: list[str] = []
        self.running: list[str] = []

    def cancel(self, sequence_ids: Sequence[str]) -> None:
        self.cancelled += sequence_ids

    def cancel_origin(self, origin: str) -> None:
        self.lost_origins.append(origin)

    def runs(self, sequence_id: str) -> bool:
        return sequence_id in self.running


class End:
    """One gateway's relay with what stands around it."""

    def __init__(self, name: str, addresses: Addresses) -> None:
        self.name = name
        metrics = Metrics(CollectorRegistry())
        self.streams = Streams(clock=monotonic_us, metrics=metrics, estimates=Estimates())
        self.driver = RecordingDriver()
        drivers = DriverSet()
        drivers.add(f"{name}/w", self.driver)
        directory: Any = addresses
        self.relay = Relay(
            gateway_id=name,
            secret=b"s",
            streams=self.streams,
            drivers=drivers,
            directory=directory,
            clock=monotonic_us,
            unreachable_s=0.2,
        )

    def open(self, sequence_id: str) -> Stream:
        return self.streams.open(
            claim_of(sequence_id).entry,
            model="m",
            on_cancel=lambda _stream: None,
            on_lost=lambda stream: self.streams.cut(stream, Reason.WORKER_LOST, "Its driver is gone."),
        )

    def say(self, origin: End, position: int, *token_ids: int, finish: str = "", sequence_id: str = "a") -> None:
        self.relay.deliver(
            f"{self.name}/w",
            origin.relay.address,
            [Delivery(sequence_id=sequence_id, position=position, token_ids=token_ids, finish=finish, error="")],
        )


@asynccontextmanager
async def up(run_dir: Path, name: str, addresses: Addresses) -> AsyncIterator[End]:
    end = End(name, addresses)
    await end.relay.start(f"unix:{run_dir}/{name}")
    addresses.known[name] = end.relay.address
    task = asyncio.create_task(end.relay.run())
    await asyncio.sleep(0)
    try:
        yield end
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_output_reaches_the_origin_and_its_cancels_come_back(run_dir: Path) -> None:
    """One link carries both."""
    addresses = Addresses()
    async with up(run_dir, "driver", addresses) as driver, up(run_dir, "origin", addresses) as origin:
        stream = origin.open("a")
        driver.say(origin, 0, 1)
        driver.say(origin, 1, 2)
        await wait_until(lambda: stream.next_position == 2, "both have come")
        addresses.is_away = True
        origin.relay.cancel("driver/w", ("a",))
        await wait_until(lambda: driver.driver.cancelled == ["a"], "the driver knows")


async def test_an_origin_without_a_link_dials_the_driver_to_cancel(run_dir: Path) -> None:
    """A request may be claimed and cancelled before it has given a token."""
    addresses = Addresses()
    async with up(run_dir, "driver", addresses) as driver, up(run_dir, "origin", addresses) as origin:
        addresses.is_away = True
        origin.relay.cancel("driver/w", ("a", "b"))
        addresses.is_away = False
        await wait_until(lambda: driver.driver.cancelled == ["a", "b"], "the driver knows")


async def test_output_for_nobody_is_cancelled_by_the_origin(run_dir: Path) -> None:
    """What an origin forgot in a crash must not run to its end."""
    addresses = Addresses()
    async with up(run_dir, "driver", addresses) as driver, up(run_dir, "origin", addresses) as origin:
        driver.say(origin, 0, 1, sequence_id="unknown")
        await wait_until(lambda: driver.driver.cancelled == ["unknown"], "the driver knows")


async def test_what_belongs_to_this_gateway_needs_no_socket(run_dir: Path) -> None:
    """The common case of one gateway: driver and origin are the same process."""
    addresses = Addresses()
    async with up(run_dir, "both", addresses) as both:
        stream = both.open("a")
        both.say(both, 0, 1, finish="length")
        assert (await read_all(stream)).token_ids == (1,)
        both.say(both, 0, 1, sequence_id="unknown")
        assert both.driver.cancelled == ["unknown"]


async def test_sequences_of_an_origin_that_stays_unreachable_are_cancelled(run_dir: Path) -> None:
    """Its clients are gone: nothing is generated for nobody."""
    addresses = Addresses()
    async with up(run_dir, "driver", addresses) as driver:
        async with up(run_dir, "origin", addresses) as origin:
            stream = origin.open("a")
            driver.say(origin, 0, 1)
            await wait_until(lambda: stream.next_position == 1, "the link is up")
        await wait_until(lambda: driver.driver.lost_origins == [origin.relay.address], "it is given up")


async def test_streams_of_a_driver_that_stays_away_are_lost(run_dir: Path) -> None:
    """Whoever answers for them then, they never just stop."""
    addresses = Addresses()
    async with up(run_dir, "origin", addresses) as origin:
        stream = origin.open("a")
        async with up(run_dir, "driver", addresses) as driver:
            driver.say(origin, 0, 1)
            await wait_until(lambda: stream.next_position == 1, "it runs")
        assert (await read_all(stream)).error is Reason.WORKER_LOST


async def test_streams_of_a_driver_that_was_killed_end_when_its_next_life_is_heard_of(run_dir: Path) -> None:
    """Started anew under its name within a moment, it is not missed; but it knows nothing of what it ran."""
    addresses = Addresses()
    async with up(run_dir, "origin", addresses) as origin:
        origin.relay._unreachable_s = 60.0
        lost, kept = origin.open("lost"), origin.open("kept")
        async with up(run_dir, "driver", addresses) as driver:
            driver.say(origin, 0, 1, sequence_id="lost")
            await wait_until(lambda: lost.next_position == 1, "it runs")
        async with up(run_dir, "driver", addresses) as driver:
            driver.say(origin, 0, 1, sequence_id="kept")
            assert (await asyncio.wait_for(read_all(lost), 5)).error is Reason.WORKER_LOST
            driver.say(origin, 1, 2, sequence_id="kept", finish="length")
            assert (await read_all(kept)).finish == "length"


async def test_an_origin_that_is_back_in_time_gets_the_rest(run_dir: Path) -> None:
    """A short break of the network is nobody's loss."""
    addresses = Addresses()
    async with up(run_dir, "driver", addresses) as driver, up(run_dir, "origin", addresses) as origin:
        stream = origin.open("a")
        driver.say(origin, 0, 1)
        await wait_until(lambda: stream.next_position == 1, "the link is up")
        await origin.relay._listener.close()
        for position in range(1, 5):
            driver.say(origin, position, position + 1)
        driver.say(origin, 5, 6, finish="length")
        await origin.relay.start(origin.relay.address)
        assert await read_all(stream) == Tokens(token_ids=(1, 2, 3, 4, 5, 6), finish="length")
        assert driver.driver.lost_origins == []
