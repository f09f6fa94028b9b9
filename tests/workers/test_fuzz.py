"""A real listener under fire: whatever bytes come, they cost their own connection and one line in the log, no more.

One worker serves a standing driver all the while; Hypothesis plays the strangers, and the drivers that have lost their
minds.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.workers.executor_contract import NOTHING, SEQUENCE, WHOLE
from tests.workers.gateway_end import GatewayEnd
from tests.workers.running_worker import Worker
from tests.workers.wire.strategies import messages, of_class
from workers.executor import PlanError
from workers.slots import SlotTable
from workers.wire import (
    BlockGrowth,
    Challenge,
    Hello,
    NewSequence,
    PlanMessage,
    PrefillSpan,
    ReportMessage,
    Sampling,
    encode,
)

under_fire = settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with structlog.testing.capture_logs() as log:
        worker = Worker(tmp_path_factory.mktemp("worker"), log, secret=b"", times=None, faults=[])
        worker.start()
        yield worker
        worker.stop()


epochs = count(1)


@st.composite
def bad_streams(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    """A frame that was mutated, cut short, given another length, or is none at all."""
    frame = bytearray(draw(frames))
    match draw(st.sampled_from(("mutate", "cut", "lengthen", "noise"))):
        case "mutate":
            for _ in range(draw(st.integers(1, 5))):
                frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
        case "cut":
            del frame[draw(st.integers(1, len(frame))) :]
        case "lengthen":
            frame[:4] = draw(st.integers(0, 2**32 - 1)).to_bytes(4, "big")
        case "noise":
            frame = bytearray(draw(st.binary(min_size=1, max_size=300)))
    return bytes(frame)


def assert_one_line(worker: Worker, act: Callable[[], None]) -> None:
    """``act`` ends one connection: one line says why, and no iteration fails."""
    before = len(worker.lines("link_refused")) + len(worker.lines("link_lost"))
    act()
    assert len(worker.lines("link_refused")) + len(worker.lines("link_lost")) == before + 1
    assert worker.lines("iteration_failed") == []


def say_no_more(end: GatewayEnd, stream: bytes) -> None:
    """Send, and let the worker see the end of the stream, so that half a frame need not be waited for."""
    with contextlib.suppress(OSError):  # cut while it was still talking
        end.sock.sendall(stream)
        end.sock.shutdown(socket.SHUT_WR)


@under_fire
@given(stream=bad_streams(messages().map(encode)))
def test_a_stranger_harms_only_its_own_connection(worker: Worker, stream: bytes) -> None:
    """Anybody who reaches the port may send anything."""
    driver, epoch = worker.connect(peer="driver"), next(epochs)
    driver.drive(epoch=epoch)

    def attack() -> None:
        stranger = worker.connect(peer="stranger")
        stranger.receive(Challenge)
        say_no_more(stranger, stream)
        stranger.await_end()

    assert_one_line(worker, attack)
    driver.send(replace(NOTHING, epoch=epoch))
    driver.receive(ReportMessage)
    driver.close()


@under_fire
@given(data=st.data())
def test_a_driver_that_sends_nonsense_loses_its_link_and_nothing_more(worker: Worker, data: st.DataObject) -> None:
    """The next one finds the worker empty and willing, whether or not the nonsense was a plan."""
    epoch = next(epochs)
    plan = data.draw(plans().map(lambda plan: replace(plan, epoch=epoch)))
    stream = data.draw(bad_streams(st.just(encode(plan))) | st.just(encode(plan)))
    end = worker.connect(peer="mad")
    end.drive(epoch=epoch)
    say_no_more(end, stream)
    end.await_end()  # after a refusal, or a report of what was a plan after all
    end.close()
    again, epoch = worker.connect(peer="canary"), next(epochs)
    again.drive(epoch=epoch)
    fresh = replace(NOTHING, epoch=epoch, starts=(SEQUENCE,), prefill=(WHOLE,))
    again.send(fresh)
    report = again.receive(ReportMessage)
    assert (len(report.tokens), report.live_blocks, report.host_blocks) == (1, 2, 0)
    assert worker.lines("iteration_failed") == []
    again.close()


def test_a_pickle_on_the_socket_runs_nothing(worker: Worker, tmp_path: Path) -> None:
    """F03: unpickling a peer's bytes would be running its code."""
    witness = tmp_path / "witness"

    class Touch:
        def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
            return Path.touch, (witness,)

    payload = pickle.dumps(Touch())
    end = worker.connect(peer="pickler")
    end.receive(Challenge)
    end.sock.sendall(len(payload).to_bytes(4, "big") + payload)
    assert end.refusal().startswith("bad frame: ")
    assert not witness.exists()
    asking = worker.connect()
    asking.prove()
    asking.receive(Hello)


# --- plans that are well-formed and senseless -------------------------------------------------------------------------

small = st.integers(0, 6)
some = st.lists(small, max_size=4).map(tuple)


def plans() -> st.SearchStrategy[PlanMessage]:
    """Any plan in form, of numbers so small that its parts meet."""
    starts = st.builds(
        NewSequence,
        slot=small,
        sequence_id=st.sampled_from("ab"),
        tokens=st.lists(st.integers(0, 2**32 - 1) | small, max_size=9).map(tuple),
        emitted=small,
        computed=st.integers(0, 9),
        max_tokens=st.integers(0, 9),
        sampling=of_class(Sampling),
        blocks=some,
        swapped=small,
    )
    spans = st.builds(PrefillSpan, slot=small, start=small, length=small, emits=st.booleans())
    return st.builds(
        PlanMessage,
        step=small,
        epoch=small,
        frees=some,
        starts=st.lists(starts, max_size=2).map(tuple),
        grows=st.lists(st.builds(BlockGrowth, slot=small, blocks=some), max_size=2).map(tuple),
        copies=st.lists(st.tuples(small, small), max_size=2).map(tuple),
        prefill=st.lists(spans, max_size=2).map(tuple),
        decode=some,
        swap_outs=some,
        drops=st.lists(st.sampled_from("ab"), max_size=2).map(tuple),
    )


@settings(max_examples=examples(100))
@given(sent=st.lists(plans(), max_size=5))
def test_any_plan_is_obeyed_or_refused_by_a_rule(sent: list[PlanMessage]) -> None:
    """A plan that nobody thought of must not end in an exception that nobody expects."""
    table = SlotTable(max_slots=3, kv_blocks=5, block_size=2, context_length=12, eos_ids=(1,), host_blocks=3)
    for plan in sent:
        try:
            table.apply(plan)
        except PlanError:
            return
        table.take_moves()
        assert table.live_blocks <= 5
        assert table.host_blocks <= 3
