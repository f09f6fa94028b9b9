"""The queue as metrics."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry

from admission.classes import DEFAULT_CLASSES
from admission.queue import QueueBounds, QueueStats
from gateway.metrics import Metrics
from gateway.queue_gauges import QueueGauges
from tests.gateway.counted import counted


class Watched:
    """Gauges of the default classes, and what they show."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.gauges = QueueGauges(self.metrics.queue, bounds=bounds, classes=DEFAULT_CLASSES)

    def requests(self, **labels: str) -> float:
        return counted(self.metrics.registry, "sluicegate_queue_requests", **labels)

    def value(self, name: str) -> float:
        return counted(self.metrics.registry, name)


def stats(tokens: int, **by_class: int) -> QueueStats:
    by_name = tuple([(name, requests, 10 * requests) for name, requests in by_class.items()])
    return QueueStats(requests=sum(by_class.values()), tokens=tokens, by_class=by_name)


def test_what_waits_is_shown_by_class_over_all_models() -> None:
    """An operator asks who waits before asking for what."""
    watched = Watched(QueueBounds(max_requests=8))
    watched.gauges.show([stats(100, interactive=1, batch=2), stats(50, batch=3)])
    assert {name: watched.requests(**{"class": name}) for name in ("interactive", "standard", "batch")} == {
        "interactive": 1,
        "standard": 0,
        "batch": 5,
    }
    assert watched.value("sluicegate_queue_tokens") == 150


def test_a_class_that_waits_no_more_falls_back_to_zero() -> None:
    """The store does not name what it has none of; a gauge that kept its value would show a line that is gone."""
    watched = Watched(QueueBounds(max_requests=8))
    watched.gauges.show([stats(100, batch=2)])
    watched.gauges.show([stats(0)])
    assert watched.requests() == 0


def test_a_class_of_another_gateway_is_no_label_here() -> None:
    """Labels come from this gateway's own list, whatever lies in the store; the sum is right all the same."""
    watched = Watched(QueueBounds(max_requests=8))
    watched.gauges.show([stats(100, batch=2, **{"a stranger": 3})])
    assert (watched.requests(), watched.requests(**{"class": ""})) == (5, 3)


def test_bounds_stand_beside_what_waits() -> None:
    """Full is a share of something; without a bound there is room for ever."""
    watched = Watched(QueueBounds(max_requests=8, max_tokens=None))
    assert watched.value("sluicegate_queue_requests_bound") == 8
    assert watched.value("sluicegate_queue_tokens_bound") == math.inf
