"""Steps begun before the last one's report is made: the order of things, and the times that are told of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
import structlog

from tests.support import wait_until
from tests.workers.executor_contract import NOTHING, change
from tests.workers.gateway_end import GatewayEnd
from workers.executor import PlanError
from workers.fake import FakeExecutor
from workers.fake_script import FakeScript
from workers.listener import listen, stop_listening
from workers.overlap import OverlappingExecutor
from workers.server import Server
from workers.wire import Hello, PlanMessage, ReportMessage, UnixAddress


class Device(FakeExecutor):
    """Does a step when the test says so; ``begun`` are the steps of the plans that it was given."""

    def __init__(self) -> None:
        super().__init__(FakeScript())
        self.begun: list[int] = []
        self.breaks_at: int | None = None
        self._reports: deque[ReportMessage] = deque()
        self._done: SimpleQueue[None] = SimpleQueue()

    def do_one(self) -> None:
        self._done.put(None)

    def begin(self, plan: PlanMessage) -> Callable[[], object]:
        self._reports.append(self.execute(plan))
        self.begun.append(plan.step)
        return lambda: self._done.get(timeout=5.0)

    def complete(self) -> ReportMessage:
        report = self._reports.popleft()
        if report.step == self.breaks_at:
            raise RuntimeError("an illegal memory access was encountered")
        return report

    def reset(self) -> None:
        super().reset()
        self._reports.clear()


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def path(tmp_path: Path, device: Device) -> Iterator[Path]:
    """The socket of a server over the device."""
    address = UnixAddress(str(tmp_path / "worker.sock"))
    listener = listen(address)
    server = Server(device, listener=listener, worker_id="worker-0", secret=b"")
    thread = threading.Thread(target=server.run)
    with structlog.testing.capture_logs():
        thread.start()
        yield Path(address.path)
        server.stop()
        thread.join(timeout=5.0)
    assert not thread.is_alive()
    stop_listening(listener, address)


@pytest.fixture
def end(path: Path) -> Iterator[GatewayEnd]:
    found = GatewayEnd(path)
    found.drive(epoch=1)
    yield found
    found.close()


def test_the_fake_is_of_the_kind_that_the_server_overlaps(device: Device) -> None:
    """Or the tests below would show nothing; the plain one is not."""
    assert isinstance(device, OverlappingExecutor)
    assert not isinstance(FakeExecutor(FakeScript()), OverlappingExecutor)


async def test_a_plan_is_begun_when_it_comes_although_the_last_one_still_runs(device: Device, end: GatewayEnd) -> None:
    """The device must find its next step in the queue when it ends one; reports come in order, when their step ends."""
    end.send(NOTHING)
    await wait_until(lambda: device.begun == [1], "the first plan is begun")
    end.send(change(step=2))
    await wait_until(lambda: device.begun == [1, 2], "the second plan is begun")
    device.do_one()
    assert end.receive(ReportMessage).step == 1
    end.send(change(step=3))
    await wait_until(lambda: device.begun == [1, 2, 3], "the third plan is begun")
    device.do_one()
    device.do_one()
    assert [end.receive(ReportMessage).step for _ in range(2)] == [2, 3]


async def test_times_are_those_of_the_device(device: Device, end: GatewayEnd) -> None:
    """A step that was there when the last one ended waited for nothing; one that came later let the device idle."""
    end.send(NOTHING, change(step=2))
    await wait_until(lambda: device.begun == [1, 2], "both are begun")
    device.do_one()
    device.do_one()
    reports = [end.receive(ReportMessage) for _ in range(2)]
    assert [report.idle_us for report in reports] == [0, 0]
    assert reports[0].busy_us > 0
    end.send(change(step=3))
    device.do_one()
    assert end.receive(ReportMessage).idle_us > 0


async def test_a_plan_that_breaks_the_rules_costs_its_driver_the_link(
    device: Device, end: GatewayEnd, path: Path
) -> None:
    """What still runs is waited for, and told to nobody; the next driver finds an empty worker."""
    end.send(NOTHING)
    await wait_until(lambda: device.begun == [1], "the first plan is begun")
    end.send(change(step=2, decode=(3,)))
    assert end.refusal() == "plan 2 is refused: slot 3 is decoded, but is empty"
    device.do_one()
    await assert_serves(device, path)


async def test_a_device_that_fails_costs_the_driver_its_link(device: Device, end: GatewayEnd, path: Path) -> None:
    """And what was begun behind the failure is not reported."""
    device.breaks_at = 1
    end.send(NOTHING, change(step=2))
    await wait_until(lambda: device.begun == [1, 2], "both are begun")
    device.do_one()
    assert end.refusal().startswith("plan 1 failed: RuntimeError: an illegal memory access")
    device.do_one()
    await assert_serves(device, path)


async def test_a_driver_that_leaves_is_forgotten_with_its_steps(device: Device, end: GatewayEnd, path: Path) -> None:
    """Their ends come as mail after it is gone."""
    end.send(NOTHING)
    await wait_until(lambda: device.begun == [1], "the first plan is begun")
    end.close()
    device.do_one()
    await assert_serves(device, path)


async def test_nobody_is_greeted_while_the_device_works_for_a_lost_driver(
    device: Device, end: GatewayEnd, path: Path
) -> None:
    """It may hang there for ever, and a new driver's sequences would wait behind it and move for nothing."""
    end.send(NOTHING, change(step=2))
    await wait_until(lambda: device.begun == [1, 2], "both are begun")
    end.close()
    new = GatewayEnd(path)
    new.prove()
    device.do_one()
    new.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        new.receive(Hello)
    device.do_one()
    new.sock.settimeout(5.0)
    assert new.receive(Hello).last_epoch == 1
    new.close()


async def assert_serves(device: Device, path: Path) -> None:
    another = GatewayEnd(path)
    another.drive(epoch=2)
    before = len(device.begun)
    another.send(change(step=7, epoch=2))
    await wait_until(lambda: len(device.begun) == before + 1, "the next driver's plan is begun")
    device.do_one()
    assert another.receive(ReportMessage).step == 7
    another.close()


def test_a_refused_plan_does_not_count(device: Device) -> None:
    """The protocol of an overlapping executor: ``begin`` raises as ``execute`` does."""
    with pytest.raises(PlanError, match="slot 3 is decoded"):
        device.begin(change(decode=(3,)))
    assert device.begun == []
