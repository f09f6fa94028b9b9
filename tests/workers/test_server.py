"""A worker over a real Unix socket: one driver, any number of wrong ones, and an executor that lives through them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.workers.executor_contract import NOTHING, change
from tests.workers.gateway_end import Closed, GatewayEnd
from tests.workers.planner import Planner, Request
from workers.fake import FakeExecutor, Host
from workers.fake_script import FakeScript
from workers.link import LinkTimes
from workers.listener import ListenError, listen, stop_listening
from workers.server import Server
from workers.wire import (
    Auth,
    Challenge,
    Hello,
    PlanMessage,
    Refusal,
    ReportMessage,
    TokenizerFiles,
    TokenizerRequest,
    UnixAddress,
    Welcome,
    encode,
)

BRIEF = LinkTimes(handshake_s=0.2, welcome_s=0.2, frame_s=0.2, send_s=0.2)


class Worker:
    """A server on its own thread, over an executor that can be held within an iteration."""

    def __init__(
        self,
        folder: Path,
        log: list[MutableMapping[str, Any]],
        *,
        secret: bytes,
        times: LinkTimes | None,
        faults: Sequence[Mapping[str, object]],
    ) -> None:
        self.log = log
        self.address = UnixAddress(str(folder / "worker.sock"))
        self.path = Path(self.address.path)
        self.go_on = threading.Event()
        script = FakeScript.model_validate({"slots": 4, "blocks": 64, "faults": list(faults)})
        self.executor = FakeExecutor(script, Host(sleep=lambda _: self._hold()))
        self.listener = listen(self.address)
        self.server = Server(self.executor, listener=self.listener, worker_id="worker-0", secret=secret, times=times)
        self._thread = threading.Thread(target=self.server.run)
        self._ends: list[GatewayEnd] = []

    def start(self) -> None:
        self._thread.start()

    def connect(self, *, peer: str = "gateway-0") -> GatewayEnd:
        end = GatewayEnd(self.path, peer=peer)
        self._ends.append(end)
        return end

    def stop(self) -> None:
        self.go_on.set()
        self.server.stop()
        self._thread.join(timeout=5.0)
        assert not self._thread.is_alive()
        stop_listening(self.listener, self.address)
        for end in self._ends:
            end.close()

    def lines(self, event: str) -> list[str]:
        return [str(line.get("reason")) for line in self.log if line["event"] == event]

    def _hold(self) -> None:
        assert self.go_on.wait(5.0)


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts workers, and stops them after the test."""
    started: list[Worker] = []
    with structlog.testing.capture_logs() as log:

        def build(
            *, secret: bytes = b"", times: LinkTimes | None = None, faults: Sequence[Mapping[str, object]] = ()
        ) -> Worker:
            worker = Worker(tmp_path, log, secret=secret, times=times, faults=faults)
            started.append(worker)
            worker.start()
            return worker

        yield build
        for worker in started:
            worker.stop()


def assert_serves(worker: Worker, *, epoch: int) -> None:
    """The canary: a new driver gets tokens from an empty worker."""
    end = worker.connect(peer="canary")
    end.drive(epoch=epoch)
    end.send(planner_of(worker, epoch).plan(starts=[Request(prompt=(10, 11, 12))]))
    report = end.receive(ReportMessage)
    assert len(report.tokens) == 1
    assert report.live_blocks == 1
    end.close()


def planner_of(worker: Worker, epoch: int = 1) -> Planner:
    return Planner(worker.executor, epoch=epoch)


# --- a good driver ----------------------------------------------------------------------------------------------------


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


def test_the_socket_is_its_users_alone(start: Start) -> None:
    """Whoever can connect can run plans (case F03)."""
    assert start().path.stat().st_mode & 0o777 == 0o600


def test_a_live_workers_socket_is_not_taken(start: Start) -> None:
    """Two workers under one address would each get half of the connections."""
    worker = start()
    with pytest.raises(ListenError, match="another process does"):
        listen(worker.address)


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    """A worker that was killed must be able to start again."""
    address = UnixAddress(str(tmp_path / "left.sock"))
    listen(address).close()
    stop_listening(listen(address), address)
    assert not Path(address.path).exists()


def test_a_file_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    """A mistyped address must not delete somebody's file."""
    path = tmp_path / "notes.txt"
    path.write_text("keep")
    with pytest.raises(ListenError, match="a file of another kind"):
        listen(UnixAddress(str(path)))
    assert path.read_text() == "keep"


# --- who may drive ----------------------------------------------------------------------------------------------------


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
    end.prove(version=2)
    assert end.refusal() == "wire version 2 is not 1"
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


def test_a_stranger_gives_way_when_all_places_are_taken(start: Start) -> None:
    """Connections that prove nothing must not keep a gateway out."""
    worker = start()
    strangers = [worker.connect() for _ in range(16)]
    for stranger in strangers:
        stranger.receive(Challenge)
    assert_serves(worker, epoch=1)
    with pytest.raises(Closed):
        strangers[0].receive(Challenge)


# --- links that end ---------------------------------------------------------------------------------------------------


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
    end.close()
    new = worker.connect(peer="new")
    new.drive(epoch=2)
    new.send(TokenizerRequest(digest=worker.executor.card.tokenizer_digest))
    new.receive(TokenizerFiles)  # so the old link's end has been seen, too
    worker.go_on.set()
    new.send(change(epoch=2))
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


# --- executors that fail ----------------------------------------------------------------------------------------------


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


def test_idle_time_is_that_between_two_plans(start: Start) -> None:
    """The first plan of a driver waited for nothing; a later one did, if the driver was slow."""
    worker = start()
    end = worker.connect()
    end.drive()
    end.send(NOTHING)
    assert end.receive(ReportMessage).idle_us == 0
    end.send(NOTHING)
    assert end.receive(ReportMessage).idle_us > 0


def test_a_refusal_quotes_anything(start: Start) -> None:
    """The peer chooses what is quoted back: its length, for one."""
    worker = start()
    end = worker.connect()
    end.drive()
    end.send(TokenizerRequest(digest="é" * 30_000))
    assert len(end.receive(Refusal).message) <= 1000
