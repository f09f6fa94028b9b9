"""Stopwatches count each moment once."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.bench.layers.of_gateway import LAYERS
from tests.bench.layers.of_worker import LINKS, MODEL, SCRIPT, SERVER
from tests.bench.layers.stopwatch import STOPWATCHES, Layers, Stopwatch, cost_s, timing


class Hands:
    """A clock that work moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_moment_counts_for_the_innermost_call_alone() -> None:
    """Else a layer would contain those that it calls, and a table would add up to more than the time there was."""
    hands = Hands()
    stopwatch = Stopwatch("base", clock=hands)
    inner = stopwatch.timed("inner", hands.work)

    def outer() -> None:
        hands.work(2.0)
        inner(3.0)
        hands.work(4.0)

    hands.work(1.0)
    stopwatch.timed("outer", outer)()
    hands.work(5.0)
    assert stopwatch.read() == {"base": 6.0, "outer": 6.0, "inner": 3.0, STOPWATCHES: 0.0}


async def test_a_coroutine_counts_while_it_runs_and_not_while_it_waits() -> None:
    """Tasks take turns on a loop: the time that one waits is another's."""
    hands = Hands()
    stopwatch = Stopwatch("base", clock=hands)

    async def work() -> str:
        hands.work(1.0)
        await asyncio.sleep(0)
        hands.work(1.0)
        return "done"

    timed = stopwatch.timed("task", work)
    task = asyncio.create_task(timed())
    await asyncio.sleep(0)
    hands.work(10.0)
    assert await task == "done"
    assert await timed() == "done"
    assert stopwatch.read() == {"base": 10.0, "task": 4.0, STOPWATCHES: 0.0}


async def test_a_timed_coroutine_can_be_cancelled() -> None:
    """The gateway's tasks end that way, and must clean up under a stopwatch as they do without."""
    stopwatch = Stopwatch("base", clock=Hands())
    seen: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    task = asyncio.create_task(stopwatch.timed("task", wait)())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cleaned up"]


def test_a_call_that_raises_is_left() -> None:
    """Whatever comes after it would count for its layer otherwise."""
    hands = Hands()
    stopwatch = Stopwatch("base", clock=hands)

    def fail() -> None:
        hands.work(1.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        stopwatch.timed("fails", fail)()
    hands.work(2.0)
    assert stopwatch.read() == {"base": 2.0, "fails": 1.0, STOPWATCHES: 0.0}


def test_what_timing_costs_is_taken_off_the_call_and_its_caller() -> None:
    """Small calls would look large by what it costs to time them; the whole stays what it was."""
    hands = Hands()
    stopwatch = Stopwatch("base", clock=hands, cost_s=0.5)
    hands.work(10.0)
    for _ in range(4):
        stopwatch.timed("call", hands.work)(1.0)
    assert stopwatch.read() == {"base": 9.0, "call": 3.0, STOPWATCHES: 2.0}
    assert sum(stopwatch.read().values()) == hands.now_s


def test_timing_a_call_costs_microseconds() -> None:
    """A step makes hundreds of such calls in milliseconds."""
    assert 0.0 < cost_s(time.perf_counter) < 100e-6


@pytest.mark.parametrize(
    "layers",
    [LAYERS, SERVER, LINKS, SCRIPT, pytest.param(MODEL, marks=pytest.mark.torch)],
    ids=["gateway", "server", "links", "script", "model"],
)
def test_every_function_that_is_timed_exists(layers: Layers) -> None:
    """One that was renamed would be found only by whoever runs the benchmark next."""
    stopwatch = Stopwatch("base", clock=Hands())
    with timing(stopwatch, layers):
        assert stopwatch.latest() == {}
