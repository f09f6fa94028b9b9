"""Supervision: a mistake at the start is reported, a death afterwards is repaired."""

from __future__ import annotations

import asyncio

import pytest

from gateway import supervise
from gateway.process import CannotStart
from gateway.supervise import Service, StartFailed
from tests.support import wait_until


class FakeChild:
    """A child whose end the test decides."""

    def __init__(self, last_line: str = "") -> None:
        self.last_line = last_line
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit_code)

    async def stop(self) -> None:
        self.end(0)

    def kill(self) -> None:
        self.end(-9)


class Nursery:
    """Starts fake children and keeps them."""

    def __init__(self, last_line: str = "") -> None:
        self.children: list[FakeChild] = []
        self._last_line = last_line

    async def start(self) -> FakeChild:
        self.children.append(FakeChild(self._last_line))
        return self.children[-1]


async def test_an_end_before_everything_is_up_tells_why() -> None:
    """A model that does not exist must end the command with the worker's own sentence."""
    nursery = Nursery('{"event": "there is no model named nope", "level": "error"}')
    service = Service("worker 0", nursery.start)
    run = asyncio.create_task(service.run())
    await wait_until(lambda: len(nursery.children) == 1, "the child runs")

    nursery.children[0].end(1)

    with pytest.raises(StartFailed, match=r"^worker 0 ended \(exit code 1\): there is no model named nope$"):
        await run


async def test_what_was_in_order_is_no_reason_for_an_end() -> None:
    """A worker that is killed has nothing to say; its last event has nothing to do with it."""
    nursery = Nursery('{"event": "driver_connected", "level": "info"}')
    run = asyncio.create_task(Service("worker 0", nursery.start).run())
    await wait_until(lambda: len(nursery.children) == 1, "the child runs")

    nursery.children[0].end(-9)

    with pytest.raises(StartFailed, match=r"^worker 0 ended \(killed by signal 9\)$"):
        await run


async def test_a_program_that_cannot_be_started_tells_why() -> None:
    """The same for a binary that is missing."""

    async def start() -> FakeChild:
        raise CannotStart("no redis-server was found")

    with pytest.raises(StartFailed, match=r"^redis did not start: no redis-server was found$"):
        await Service("redis", start).run()


async def test_a_death_later_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that crashes at night comes back without anybody."""
    monkeypatch.setattr(supervise, "FIRST_PAUSE_S", 0.001)
    nursery = Nursery()
    service = Service("worker 0", nursery.start)
    run = asyncio.create_task(service.run())
    await wait_until(lambda: len(nursery.children) == 1, "the child runs")
    service.settle()

    nursery.children[0].end(-11)
    await wait_until(lambda: len(nursery.children) == 2, "the child runs again")

    await service.stop()
    await asyncio.wait_for(run, 1)
    assert len(nursery.children) == 2


async def test_no_child_is_started_after_a_stop_that_came_during_the_pause() -> None:
    """Stopping must not race with repairing."""
    nursery = Nursery()
    service = Service("worker 0", nursery.start)
    run = asyncio.create_task(service.run())
    await wait_until(lambda: len(nursery.children) == 1, "the child runs")
    service.settle()
    nursery.children[0].end(1)

    await service.stop()

    await asyncio.wait_for(run, 1)
    assert len(nursery.children) == 1


async def test_a_stop_while_the_child_is_being_started_ends_it() -> None:
    """Between fork and the first wait there is a moment where a stop finds no child yet."""
    nursery = Nursery()
    may_start = asyncio.Event()

    async def start_slowly() -> FakeChild:
        await may_start.wait()
        return await nursery.start()

    service = Service("worker 0", start_slowly)
    run = asyncio.create_task(service.run())
    await asyncio.sleep(0)
    await service.stop()
    may_start.set()

    await asyncio.wait_for(run, 1)
    assert await nursery.children[0].wait() == 0


async def test_a_kill_ends_for_good() -> None:
    """The second Ctrl-C waits for nothing."""
    nursery = Nursery()
    service = Service("worker 0", nursery.start)
    run = asyncio.create_task(service.run())
    await wait_until(lambda: len(nursery.children) == 1, "the child runs")

    service.kill()

    await asyncio.wait_for(run, 1)
    assert await nursery.children[0].wait() == -9
