"""The table adds up."""

from __future__ import annotations

import os

import pytest

from tests.bench.layers.marks import Kind, Mark
from tests.bench.layers.table import Seen, mean_ms, processors_ms, table

SEEN = Seen(began_s=10.0, ended_s=10.5, arrivals_s=[10.105, 10.205, 10.306], cpu_s={"redis": 0.004, "clients": 0.008})


def worker_mark(number: int) -> Mark:
    """Iterations of 100 ms: 60 of linears, 30 of attention, 10 of waiting. The first comes before the burst."""
    return Mark(
        at_s=9.9 + number / 10,
        kind=Kind.REPORT,
        spent={
            "engine": {"linears": 0.06 * number, "attention": 0.03 * number, "waiting": 0.01 * number},
            "links": {"wire": 0.001 * number, "sockets": 0.002 * number},
        },
        cpu_s=0.15 * number,
        decodes=2,
    )


def gateway_mark(number: int) -> Mark:
    return Mark(
        at_s=9.902 + number / 10,
        kind=Kind.REPORT,
        spent={"loop": {"event loop": 0.002 * number, "wire": 0.001 * number}},
        cpu_s=0.004 * number,
    )


WORKER = [worker_mark(number) for number in range(5)]
GATEWAY = [gateway_mark(number) for number in range(5)]


def test_the_layers_of_an_iteration_add_up_to_it() -> None:
    """That is what a reader takes for granted."""
    spent = mean_ms([(WORKER[1], WORKER[2]), (WORKER[2], WORKER[4])], "engine")
    assert spent == pytest.approx({"linears": 90.0, "attention": 45.0, "waiting": 15.0})


def test_the_processors_time_adds_up_to_all_that_there_is() -> None:
    """What no process here used is shown too: it is where a faster server would find room."""
    spent = processors_ms(WORKER[1:], GATEWAY[1:], SEEN)
    assert spent["worker: the step, all its threads"] == pytest.approx(147.0)
    assert spent["worker: wire"] == pytest.approx(1.0)
    assert spent["redis"] == pytest.approx(1.0)
    assert sum(spent.values()) == pytest.approx(1000 * 0.5 * (os.cpu_count() or 1) / 4)


def test_only_what_happened_within_the_burst_counts() -> None:
    """The warm-up before it, and the idle time between, are nobody's layers."""
    lines = list(table(WORKER, GATEWAY, SEEN))
    assert lines[0].startswith("3 iterations of 2.0 tokens; 3 decode 2 sequences")
    assert any(line.split()[:4] == ["linears", "60.00", "60.0%", "60.00"] for line in lines)
    assert "2.0 ms in the median until the gateway has it, 5.0 until a client has its token" in lines[-1]
