"""Who may drive a worker: the secret, the version, and one epoch at a time."""

from __future__ import annotations

import pytest

from tests.workers.executor_contract import NOTHING, change
from tests.workers.planner import Request
from tests.workers.running_worker import Start, assert_serves, planner_of
from workers.wire import (
    WIRE_VERSION,
    Challenge,
    Hello,
    PlanMessage,
    ReportMessage,
    TokenizerRequest,
    Welcome,
)


def test_a_wrong_secret_is_refused(start: Start) -> None:
    """One line in the log, and the worker serves on."""
    worker = start(secret=b"open sesame")
    end = worker.connect()
    end.prove(secret=b"guess")
    assert end.refusal() == "wrong secret"
    assert worker.lines("link_refused") == ["wrong secret"]
    end = worker.connect()
    end.prove(secret=b"open sesame")
    end.receive(Hello)


def test_another_version_is_refused(start: Start) -> None:
    """Messages of another version are never guessed at."""
    worker = start()
    end = worker.connect()
    end.prove(version=WIRE_VERSION + 1)
    assert end.refusal() == f"wire version {WIRE_VERSION + 1} is not {WIRE_VERSION}"
    assert_serves(worker, epoch=1)


@pytest.mark.parametrize("message", [NOTHING, Welcome(epoch=1, max_in_flight=1), TokenizerRequest(digest="d")])
def test_nothing_is_done_for_a_stranger(start: Start, message: PlanMessage | Welcome) -> None:
    """The secret comes first."""
    worker = start()
    end = worker.connect()
    end.receive(Challenge)
    end.send(message)
    assert "is not expected while proving" in end.refusal()


def test_an_old_epoch_is_refused(start: Start) -> None:
    """A gateway that lost its lease without noticing does no harm; the hello tells the last epoch."""
    worker = start()
    worker.connect().drive(epoch=7)
    late = worker.connect(peer="late")
    assert late.drive(epoch=6).last_epoch == 7
    assert late.refusal() == "epoch 6 is over, the last is 7"


def test_the_epoch_of_a_live_driver_is_not_shared(start: Start) -> None:
    """Two drivers with one epoch could not be told apart."""
    worker = start()
    driver = worker.connect()
    driver.drive(epoch=7)
    other = worker.connect(peer="other")
    other.drive(epoch=7)
    assert "epoch 7 is that of gateway-0, which is connected" in other.refusal()
    driver.send(change(epoch=7))
    driver.receive(ReportMessage)


def test_a_higher_epoch_takes_over(start: Start) -> None:
    """A driver that hangs can be replaced; its sequences are gone, and it learns why."""
    worker = start()
    old = worker.connect(peer="old")
    old.drive(epoch=1)
    old.send(planner_of(worker).plan(starts=[Request(prompt=(10, 11))]))
    old.receive(ReportMessage)
    new = worker.connect(peer="new")
    assert new.drive(epoch=2).last_epoch == 1
    new.send(change(epoch=2))
    assert new.receive(ReportMessage).live_blocks == 0
    assert old.refusal() == "new took over with epoch 2"


def test_a_plan_of_another_epoch_is_refused(start: Start) -> None:
    """A plan belongs to the lease under which it was made."""
    worker = start()
    end = worker.connect()
    end.drive(epoch=3)
    end.send(change(epoch=2))
    assert end.refusal() == "plan 1 has epoch 2, its driver 3"


def test_more_plans_than_agreed_are_refused(start: Start) -> None:
    """The worker's queue is bounded."""
    worker = start(faults=[{"kind": "hang", "at": 1, "seconds": 1.0}])
    end = worker.connect()
    end.drive(max_in_flight=2)
    end.send(NOTHING, NOTHING, NOTHING)
    assert end.refusal() == "plan 1 is one more in flight than the 2 agreed"
    worker.go_on.set()
    assert_serves(worker, epoch=2)


@pytest.mark.parametrize("max_in_flight", [0, 9])
def test_an_unreasonable_number_of_plans_in_flight_is_refused(start: Start, max_in_flight: int) -> None:
    """None would be a driver that never drives."""
    worker = start()
    end = worker.connect()
    end.drive(max_in_flight=max_in_flight)
    assert f"{max_in_flight} plans in flight are not 1 to 8" in end.refusal()


def test_nobody_is_greeted_while_an_iteration_outlives_its_driver(start: Start) -> None:
    """Whoever drove a worker that hangs would claim sequences for it, and each would have moved for nothing."""
    worker = start(faults=[{"kind": "hang", "at": 1, "seconds": 1.0}])
    end = worker.connect()
    end.drive()
    end.send(NOTHING)
    worker.wait_until_held()
    end.close()
    impatient, patient = worker.connect(peer="impatient"), worker.connect(peer="patient")
    for new in (impatient, patient):
        new.prove()
        new.sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            new.receive(Hello)
    impatient.close()
    worker.go_on.set()
    patient.sock.settimeout(5.0)
    assert patient.receive(Hello).last_epoch == 1
    assert_serves(worker, epoch=2)
