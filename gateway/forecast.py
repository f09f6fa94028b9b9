"""How long a request would wait: the tokens ahead of it over the speed at which the cluster's line drains.

Ahead of a request is what waits in its class and in better ones (under ``fcfs`` in all), as last sampled, and what this
gateway has queued since, less what has drained since. That leaves out lower classes that have aged past it, better ones
that will come, and what other gateways queued within the sample's interval, so it errs to the short side: a deadline is
refused at the door only when it is far out of reach, and the rest end by their own timers. The speed is the sum over
all drivers of the model; unless every one of them has measured its own, nothing is predicted, as after a start.

Every prediction about a request that then waits is held against what came of it (``WaitForecast``).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from admission.classes import PriorityClass
from admission.queue import QueueStats
from admission.standing import WaitingOrderName
from gateway.clock import Clock, monotonic_us
from gateway.dispatch import Place

LEAST_RETRY_S = 1.0
MOST_RETRY_S = 60.0
LEAST_SPREAD_S = 5.0
SPREAD = 0.25
"""Clients that were refused together come back spread over a quarter of the wait, and at least over this time: of 500,
no more than one in twenty then returns in the same tenth of a second."""

LEAST_SCORED_S = 0.05
"""Shorter waits are not scored: what they take is the time of an iteration, not that of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSpeed:
    """What one driver publishes: tokens per second at which the line of ``model`` drains through it, None: unknown."""

    model: str
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForecast:
    """At ``made_us`` a request was to wait ``wait_s`` for its first token."""

    made_us: int
    wait_s: float

    def observed_ratio(self, now_us: int) -> float | None:
        """How often as long it took as it was to take, when its first token comes ``now_us``; None: not scored."""
        if self.wait_s < LEAST_SCORED_S:
            return None
        return (now_us - self.made_us) / 1_000_000 / self.wait_s

    def left_s(self, now_us: int) -> float | None:
        """How much of the wait is left; None when it has already taken longer."""
        left_s = self.wait_s - (now_us - self.made_us) / 1_000_000
        return left_s if left_s > 0 else None


class Outlook:
    """What is known of the wait of one entry, which had ``num_ahead`` others before it when it was offered."""

    def __init__(self, forecast: Forecast, *, model: str, rank: int, num_ahead: int, made: WaitForecast | None) -> None:
        self._forecast = forecast
        self._model = model
        self._rank = rank
        self._num_ahead = num_ahead
        self._made = made

    def place(self, offered_us: int, now_us: int) -> Place:
        """As of now. What goes before it only becomes fewer, but for those that may pass it."""
        if self._forecast.sampled_after(self._model, offered_us):
            num_waiting = self._forecast.num_waiting(self._model, self._rank)
            if num_waiting is not None:
                self._num_ahead = min(self._num_ahead, max(0, num_waiting - 1))
        return Place(num_ahead=self._num_ahead, left_s=None if self._made is None else self._made.left_s(now_us))


class Forecast:
    """What this gateway knows of the lines and their speeds."""

    def __init__(
        self, classes: Iterable[PriorityClass], order: WaitingOrderName, *, clock: Clock = monotonic_us
    ) -> None:
        self._order = order
        self._clock = clock
        self._ranks = {cls.name: cls.rank for cls in classes}
        self._speeds: Mapping[str, float] = {}
        self._tokens_by_rank: dict[str, defaultdict[int, int]] = {}
        self._requests_by_rank: dict[str, defaultdict[int, int]] = {}
        self._sampled_us: dict[str, int] = {}

    def take_speeds(self, speeds: Iterable[DriverSpeed]) -> None:
        """What the drivers of the cluster have published last."""
        sums: dict[str, float] = {}
        unknown: set[str] = set()
        for speed in speeds:
            if speed.tokens_per_s is None:
                unknown.add(speed.model)
            else:
                sums[speed.model] = sums.get(speed.model, 0.0) + speed.tokens_per_s
        self._speeds = {model: total for model, total in sums.items() if model not in unknown and total > 0}

    def sample(self, model: str, stats: QueueStats) -> None:
        """What waits for ``model`` now. What is of a class unknown here counts as of the worst one."""
        by_rank = self._tokens_by_rank[model] = defaultdict(int)
        requests_by_rank = self._requests_by_rank[model] = defaultdict(int)
        self._sampled_us[model] = self._clock()
        worst = max(self._ranks.values())
        for class_name, requests, tokens in stats.by_class:
            rank = self._ranks.get(class_name, worst)
            by_rank[rank] += tokens
            requests_by_rank[rank] += requests

    def queued(self, model: str, rank: int, tokens: int) -> None:
        """An entry of this gateway has just joined the line."""
        self._tokens_by_rank.setdefault(model, defaultdict(int))[rank] += tokens

    def wait_s(self, model: str, rank: int) -> float | None:
        """How long a request that comes now would wait; None: not known."""
        by_rank: Mapping[int, int] = self._tokens_by_rank.get(model, {})
        drain_s = self.drain_s(model, self._ahead(by_rank, rank))
        return None if drain_s is None else max(0.0, drain_s - self._since_sample_s(model))

    def num_waiting(self, model: str, rank: int) -> int | None:
        """How many that may go before one of this rank waited when last sampled, itself included; None: not known."""
        by_rank = self._requests_by_rank.get(model)
        return None if by_rank is None else self._ahead(by_rank, rank)

    def sampled_after(self, model: str, time_us: int) -> bool:
        """Whether the last sample knows of what was queued at ``time_us``."""
        return self._sampled_us.get(model, time_us) > time_us

    def _ahead(self, by_rank: Mapping[int, int], rank: int) -> int:
        is_fcfs = self._order is WaitingOrderName.FCFS
        return sum([number for other, number in by_rank.items() if other <= rank or is_fcfs])

    def _since_sample_s(self, model: str) -> float:
        """For so long what was sampled has drained."""
        now_us = self._clock()
        return (now_us - self._sampled_us.get(model, now_us)) / 1_000_000

    def drain_s(self, model: str, tokens: int) -> float | None:
        """How long the cluster takes for so many tokens of its line; None: not known."""
        speed = self._speeds.get(model)
        return None if speed is None else tokens / speed


def retry_after_s(wait_s: float | None) -> float | None:
    """When to come back, for a client that would have to wait so long; None stays unknown.

    Never before ``LEAST_RETRY_S`` nor after ``MOST_RETRY_S``, and never at the same time as others.
    """
    if wait_s is None:
        return None
    least_s = min(max(wait_s, LEAST_RETRY_S), MOST_RETRY_S / (1 + SPREAD))
    return least_s + random.uniform(0, max(SPREAD * least_s, LEAST_SPREAD_S))  # noqa: S311 (it guards nothing)
