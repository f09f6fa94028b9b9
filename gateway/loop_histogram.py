"""A histogram for what is observed with every token, in one thread.

The library's own takes a lock for each of its two numbers and looks through its buckets one after the other: more than
all else that is counted on the path of a token. Only the event loop's thread observes here, so nothing need be locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class LoopHistogram(Collector):
    """Like ``prometheus_client.Histogram`` without labels. ``buckets`` are ascending upper bounds, inclusive."""

    _type = "histogram"
    _labelnames = ()

    def __init__(self, name: str, documentation: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        total, buckets = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)
