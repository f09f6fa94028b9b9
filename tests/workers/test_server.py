"""A worker over a real Unix socket: plans in, reports out, and an executor that lives through its failures."""

from __future__ import annotations

from tests.workers.executor_contract import NOTHING, change
from tests.workers.planner import Request
from tests.workers.running_worker import Start, assert_serves, planner_of
from workers.wire import (
    Hello,
    ReportMessage,
    TokenizerFiles,
    TokenizerRequest,
    Welcome,
)


def test_a_driver_is_greeted_and_its_plans_are_executed(start: Start) -> None:
    """The whole protocol once."""
    worker = start()
    end = worker.connect()
    hello = end.drive(epoch=5)
    assert hello == Hello(
        worker_id="worker-0", card=worker.executor.card, max_slots=4, kv_blocks=64, block_size=16, last_epoch=0
    )
    planner = planner_of(worker, 5)
    end.send(planner.plan(starts=[Request(prompt=(10, 11))]))
    planner.take(end.receive(ReportMessage))
    end.send(planner.plan(), planner.plan())
    reports = [end.receive(ReportMessage), end.receive(ReportMessage)]
    assert [report.step for report in reports] == [2, 3]
    assert all(report.epoch == 5 and len(report.tokens) == 1 for report in reports)


def test_the_tokenizer_is_sent_at_any_time(start: Start) -> None:
    """A gateway needs it before it drives, and another one while somebody drives."""
    worker = start()
    driver = worker.connect()
    driver.prove()
    digest = driver.receive(Hello).card.tokenizer_digest
    driver.send(TokenizerRequest(digest=digest))
    assert driver.receive(TokenizerFiles) == worker.executor.tokenizer_files()
    driver.send(Welcome(epoch=1, max_in_flight=1), TokenizerRequest(digest=digest))
    assert driver.receive(TokenizerFiles).digest == digest
    driver.send(TokenizerRequest(digest="another"))
    assert "the tokenizer here is not 'another'" in driver.refusal()


def test_the_tokenizer_is_sent_while_an_iteration_runs(start: Start) -> None:
    """The link thread serves beside the engine."""
    worker = start(faults=[{"kind": "hang", "at": 1, "seconds": 1.0}])
    end = worker.connect()
    digest = end.drive().card.tokenizer_digest
    end.send(NOTHING, TokenizerRequest(digest=digest))
    assert end.receive(TokenizerFiles).digest == digest
    worker.go_on.set()
    assert end.receive(ReportMessage).busy_us > 0


def test_a_plan_that_breaks_the_rules_costs_its_driver_the_link(start: Start) -> None:
    """Driver and worker no longer agree on what is where: start anew."""
    worker = start()
    end = worker.connect()
    end.drive(epoch=1)
    end.send(change(decode=(3,)))
    assert end.refusal() == "plan 1 is refused: slot 3 is decoded, but is empty"
    assert_serves(worker, epoch=2)


def test_an_exception_is_loud_and_the_worker_lives_on(start: Start) -> None:
    """The plan behind it is not executed on whatever is left."""
    worker = start(faults=[{"kind": "raise", "at": 1}])
    end = worker.connect()
    end.drive(epoch=1)
    end.send(NOTHING, change(step=2))
    assert end.refusal().startswith("plan 1 failed: ScriptedFailure: ")
    assert_serves(worker, epoch=2)
    assert [line["step"] for line in worker.log if line["event"] == "iteration_failed"] == [1]


def test_idle_time_is_that_between_two_plans(start: Start) -> None:
    """The first plan of a driver waited for nothing; a later one did, if the driver was slow."""
    worker = start()
    end = worker.connect()
    end.drive()
    end.send(NOTHING)
    assert end.receive(ReportMessage).idle_us == 0
    end.send(NOTHING)
    assert end.receive(ReportMessage).idle_us > 0
