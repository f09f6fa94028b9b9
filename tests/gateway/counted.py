"""What metrics say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry


def counted(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have ``labels``, and perhaps others; 0 where nothing was counted yet."""
    return sum(
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
