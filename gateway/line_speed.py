"""How fast the waiting line of a model drains through one driver: what waiting times are predicted from.

The measure is what the queue's bounds count, prompt and expected output tokens, as they leave the line for the first
time. So an expectation that is too high or too low cancels out: the line is as long in these tokens as its speed is.

Only time in which something waits counts. An idle worker takes little because little comes, not because it could not
take more. What is measured is remembered while the line is empty, but not for long: workers come and go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.clock import Clock

WINDOW_US = 20_000_000
"""Busy time that counts: long enough for some sequences to end on a slow worker."""

LEAST_BUSY_US = 2_000_000
LEAST_TAKEN = 4
"""With less busy time or fewer entries nothing is known: a prediction from one sequence would be chance."""

MEMORY_US = 60_000_000
"""After so long without anything waiting, nothing is known any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Time between two samples at which something waited, and what left the line in it."""

    until_us: int
    lasted_us: int
    entries: int
    tokens: int


class LineSpeed:
    """Of one driver. ``note`` what it takes, ``sample`` at short intervals."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._spans: deque[_Span] = deque()
        self._busy_us = 0
        self._entries = 0
        self._tokens = 0
        self._since_us: int | None = None  # the last sample, if something waited then

    def note(self, tokens: int) -> None:
        """An entry of so many tokens has left the line for good."""
        self._entries += 1
        self._tokens += tokens

    def sample(self, num_waiting: int) -> None:
        now_us = self._clock()
        if self._since_us is not None and num_waiting > 0:
            self._add(
                _Span(until_us=now_us, lasted_us=now_us - self._since_us, entries=self._entries, tokens=self._tokens)
            )
        self._entries = self._tokens = 0
        self._since_us = now_us if num_waiting > 0 else None

    def pause(self) -> None:
        """What happens until the next sample does not count: the store is away, and nobody can take anything."""
        self._since_us = None

    def tokens_per_s(self) -> float | None:
        """None while too little is known."""
        self._forget_before(self._clock() - MEMORY_US)
        if self._busy_us < LEAST_BUSY_US or sum([span.entries for span in self._spans]) < LEAST_TAKEN:
            return None
        return sum([span.tokens for span in self._spans]) * 1_000_000 / self._busy_us

    def _add(self, span: _Span) -> None:
        self._forget_before(span.until_us - MEMORY_US)
        self._spans.append(span)
        self._busy_us += span.lasted_us
        while self._busy_us - self._spans[0].lasted_us >= WINDOW_US:
            self._remove_oldest()

    def _forget_before(self, time_us: int) -> None:
        while self._spans and self._spans[0].until_us < time_us:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        self._busy_us -= self._spans.popleft().lasted_us


class LineSpeeds:
    """Those of all drivers of this gateway, by model."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._by_model: dict[str, list[LineSpeed]] = {}

    def begin(self, model: str) -> LineSpeed:
        """A driver of ``model`` starts."""
        speed = LineSpeed(clock=self._clock)
        self._by_model.setdefault(model, []).append(speed)
        return speed

    def end(self, model: str, speed: LineSpeed) -> None:
        self._by_model[model].remove(speed)
        if not self._by_model[model]:
            del self._by_model[model]

    def pause(self) -> None:
        for speeds in self._by_model.values():
            for speed in speeds:
                speed.pause()

    def sample(self, model: str, num_waiting: int) -> None:
        for speed in self._by_model.get(model, ()):
            speed.sample(num_waiting)
