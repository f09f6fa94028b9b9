"""Time by layer of one thread: each moment counts for the innermost timed call that runs then, or for the base.

So the layers add up to the time that has passed, whatever calls whatever. A coroutine counts while it runs, not while
it waits.
"""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

Clock = Callable[[], float]
Layers = Mapping[str, Sequence[str]]
"""By layer the functions that are of it, each by its full name: ``package.module.Class.function``."""

STOPWATCHES = "stopwatches"
"""The layer of what measuring costs."""

_TRIALS, _CALLS = 5, 4000


class Stopwatch:
    """``clock`` gives seconds. The thread is at its base now, or was when the clock showed ``began``.

    ``cost_s`` is what a timed call costs. Half of it falls to the call and half to its caller; it is taken off both,
    and shown as a layer of its own.
    """

    def __init__(self, base: str, *, clock: Clock, began: float | None = None, cost_s: float = 0.0) -> None:
        self._clock = clock
        self._since = clock() if began is None else began
        self._cost_s = cost_s
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._stretches: defaultdict[str, int] = defaultdict(int)  # two of them to a timed call: itself, and its caller
        self._running = [base]

    def enter(self, layer: str) -> None:
        self._end_stretch()
        self._running.append(layer)

    def leave(self) -> None:
        self._end_stretch()
        self._running.pop()

    def read(self) -> dict[str, float]:
        """Seconds by layer until now. To be called on the thread that is timed."""
        now = self._clock()
        self._spent[self._running[-1]] += now - self._since
        self._since = now
        return self.latest()

    def latest(self) -> dict[str, float]:
        """Seconds by layer until the last timed call began or ended; from any thread."""
        ended = dict(self._stretches)  # first: a layer has its time before its stretch counts
        spent = dict(self._spent)
        for layer, stretches in ended.items():
            cost_s = stretches * self._cost_s / 2
            spent[layer] -= cost_s
            spent[STOPWATCHES] = spent.get(STOPWATCHES, 0.0) + cost_s
        return spent

    def timed(self, layer: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """As ``function``, plain or async, but its time counts for ``layer``."""
        if inspect.iscoroutinefunction(function):
            return lambda *arguments, **named: _Timed(self, layer, function(*arguments, **named))

        def run(*arguments: Any, **named: Any) -> Any:
            self.enter(layer)
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return run

    def _end_stretch(self) -> None:
        now, layer = self._clock(), self._running[-1]
        self._spent[layer] += now - self._since
        self._stretches[layer] += 1
        self._since = now


class _Timed(Coroutine[Any, Any, Any]):
    """A coroutine, to await or to make a task of, each of whose steps is timed."""

    def __init__(self, stopwatch: Stopwatch, layer: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._stopwatch = stopwatch
        self._layer = layer
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        self._stopwatch.enter(self._layer)
        try:
            return self._coroutine.send(value)
        finally:
            self._stopwatch.leave()

    def throw(self, *error: Any) -> Any:
        self._stopwatch.enter(self._layer)
        try:
            return self._coroutine.throw(*error)
        finally:
            self._stopwatch.leave()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)


@contextmanager
def timing(stopwatch: Stopwatch, layers: Layers) -> Iterator[None]:
    """Time these functions from now on. Raises AttributeError where one is not there."""
    with ExitStack() as patches:
        for layer, names in layers.items():
            for name in names:
                patches.enter_context(patch(name, stopwatch.timed(layer, resolve_name(name))))
        yield


def cost_s(clock: Clock) -> float:
    """Seconds that timing adds to a call, at best."""
    stopwatch = Stopwatch("", clock=clock)

    def nothing() -> None:
        pass

    return max(0.0, _seconds(stopwatch.timed("nothing", nothing)) - _seconds(nothing))


def _seconds(call: Callable[[], None]) -> float:
    trials = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        for _ in range(_CALLS):
            call()
        trials.append((time.perf_counter() - began) / _CALLS)
    return min(trials)
