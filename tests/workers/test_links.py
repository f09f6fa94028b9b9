"""Connections that go wrong, stall or end cost themselves and nobody else."""

from __future__ import annotations

import pytest

from tests.workers.executor_contract import NOTHING, change
from tests.workers.gateway_end import Closed
from tests.workers.planner import Request
from tests.workers.running_worker import BRIEF, Start, assert_serves, planner_of
from workers.wire import (
    Auth,
    Challenge,
    Hello,
    Refusal,
    ReportMessage,
    TokenizerRequest,
    Welcome,
    encode,
)


def test_a_stranger_gives_way_when_all_places_are_taken(start: Start) -> None:
    """Connections that prove nothing must not keep a gateway out."""
    worker = start()
    strangers = [worker.connect() for _ in range(16)]
    for stranger in strangers:
        stranger.receive(Challenge)
    assert_serves(worker, epoch=1)
    with pytest.raises(Closed):
        strangers[0].receive(Challenge)


def test_a_lost_link_frees_everything(start: Start) -> None:
    """The worker survives its gateway, and the same gateway may come back under the same epoch."""
    worker = start()
    end = worker.connect()
    end.drive(epoch=1)
    end.send(planner_of(worker).plan(starts=[Request(prompt=(10, 11))] * 4))
    assert end.receive(ReportMessage).live_blocks == 4
    end.close()
    assert_serves(worker, epoch=1)


def test_plans_of_a_lost_link_are_not_executed(start: Start) -> None:
    """Nobody would read what they give; the next driver would wait for it."""
    worker = start(faults=[{"kind": "hang", "at": 1, "seconds": 1.0}, {"kind": "raise", "at": 2}])
    end = worker.connect()
    end.drive()
    end.send(NOTHING, NOTHING)
    worker.wait_until_held()
    end.close()
    new = worker.connect(peer="new")
    new.prove()  # so the old link's end has been seen, too
    worker.go_on.set()
    new.receive(Hello)
    new.send(Welcome(epoch=2, max_in_flight=1), change(epoch=2))
    assert "failed: ScriptedFailure" in new.refusal()  # the second iteration that was executed is this one


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\4\x94\x01\x02\x03", b"GET / HTTP/1.1\r\n\r\n", bytes(5000)],
    ids=["length bomb", "no msgpack", "truncated", "http", "zeros"],
)
def test_garbage_costs_its_own_link_alone(start: Start, garbage: bytes) -> None:
    """A bad frame is one line in the log; the driver beside it notices nothing."""
    worker = start()
    driver = worker.connect()
    driver.drive(epoch=1)
    stranger = worker.connect(peer="stranger")
    stranger.receive(Challenge)
    stranger.sock.sendall(garbage)
    assert stranger.refusal().startswith("bad frame: ")
    driver.send(NOTHING)
    driver.receive(ReportMessage)
    assert len(worker.lines("link_refused")) == 1


def test_a_bad_frame_of_the_driver_costs_it_the_link(start: Start) -> None:
    """What follows in that stream has no meaning."""
    worker = start()
    end = worker.connect()
    end.drive(epoch=1)
    end.sock.sendall(encode(NOTHING)[:4] + b"\xc1" * 60)
    assert end.refusal().startswith("bad frame: ")
    assert_serves(worker, epoch=2)


def test_a_stranger_gets_small_frames_only(start: Start) -> None:
    """Memory is for those who know the secret."""
    worker = start()
    end = worker.connect()
    end.receive(Challenge)
    end.send(Auth(version=1, digest=bytes(4096), peer="large"))
    assert "over the limit of 4096" in end.refusal()


@pytest.mark.parametrize("sent", [b"", encode(Auth(version=1, digest=b"d", peer="p"))[:7]], ids=["nothing", "half"])
def test_a_peer_that_does_not_prove_itself_is_cut(start: Start, sent: bytes) -> None:
    """Silence holds a place only so long."""
    worker = start(times=BRIEF)
    end = worker.connect()
    end.receive(Challenge)
    end.sock.sendall(sent)
    end.await_end()
    assert_serves(worker, epoch=1)


def test_a_peer_that_never_welcomes_is_cut(start: Start) -> None:
    """Nor does an endless asking."""
    worker = start(times=BRIEF)
    end = worker.connect()
    end.prove()
    end.receive(Hello)
    end.await_end()
    assert worker.lines("link_lost") == ["its peer took too long between hello and welcome"]


def test_a_frame_left_unfinished_cuts_its_driver(start: Start) -> None:
    """A driver that stops within a frame is gone, or about to block."""
    worker = start(times=BRIEF)
    end = worker.connect()
    end.drive()
    end.sock.sendall(encode(NOTHING)[:-1])
    end.await_end()
    assert worker.lines("link_lost") == ["its peer left a frame unfinished"]
    assert_serves(worker, epoch=2)


def test_a_driver_without_work_is_not_cut(start: Start) -> None:
    """No plan for hours is a quiet night, not a fault."""
    worker = start(times=BRIEF)
    quiet = worker.connect()
    quiet.drive(epoch=1)
    silent = worker.connect(peer="silent")
    silent.receive(Challenge)
    silent.await_end()  # all time-outs have passed
    quiet.send(NOTHING)
    quiet.receive(ReportMessage)


def test_a_peer_that_does_not_read_is_cut(start: Start) -> None:
    """What it leaves unread must not pile up here."""
    worker = start(times=BRIEF)
    end = worker.connect()
    digest = end.drive().card.tokenizer_digest
    end.sock.sendall(encode(TokenizerRequest(digest=digest)) * 2000)
    end.await_end()
    assert worker.lines("link_lost") + worker.lines("link_refused") == ["its peer does not read"]
    assert_serves(worker, epoch=2)


def test_a_report_that_cannot_be_encoded_costs_only_the_link(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor's bug must not end the link thread."""
    worker = start()
    monkeypatch.setattr(
        worker.executor,
        "execute",
        lambda plan: ReportMessage(
            step=plan.step, epoch=-1, tokens=(), finished=(), live_blocks=0, busy_us=0, idle_us=0
        ),
    )
    end = worker.connect()
    end.drive(epoch=1)
    end.send(NOTHING)
    assert "ReportMessage.epoch is -1" in end.refusal()
    again = worker.connect()
    again.prove()
    again.receive(Hello)


def test_a_refusal_quotes_anything(start: Start) -> None:
    """The peer chooses what is quoted back: its length, for one."""
    worker = start()
    end = worker.connect()
    end.drive()
    end.send(TokenizerRequest(digest="é" * 30_000))
    assert len(end.receive(Refusal).message) <= 1000
