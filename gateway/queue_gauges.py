"""The waiting queue as metrics: what waits, by class, beside what may wait."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from admission.classes import PriorityClass
from admission.queue import QueueBounds, QueueStats
from gateway.metrics import NO_CLASS, QueueMetrics


class QueueGauges:
    """``classes`` are the only labels: what waits of one that only another gateway knows counts as of none."""

    def __init__(self, metrics: QueueMetrics, *, bounds: QueueBounds, classes: Sequence[PriorityClass]) -> None:
        self._metrics = metrics
        self._names = frozenset([cls.name for cls in classes])
        metrics.requests_bound.set(_shown(bounds.max_requests))
        metrics.tokens_bound.set(_shown(bounds.max_tokens))
        for cls in classes:
            if cls.max_waiting is not None:
                metrics.class_requests_bound.labels(cls.name).set(cls.max_waiting)
        self.show(())

    def show(self, stats: Iterable[QueueStats]) -> None:
        """What waits now, for each model."""
        waiting: Counter[str] = Counter()
        tokens = 0
        for stat in stats:
            tokens += stat.tokens
            for name, requests, _ in stat.by_class:
                waiting[name if name in self._names else NO_CLASS] += requests
        for name in (*self._names, NO_CLASS):
            self._metrics.requests.labels(name).set(waiting[name])
        self._metrics.tokens.set(tokens)


def _shown(bound: int | None) -> float:
    """Where there is no bound, there is room for ever."""
    return math.inf if bound is None else bound
