"""What is counted is what is documented."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.metrics import Metrics

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
ROW = re.compile(r"^\| `(sluicegate_\w+)` \| (counter|gauge|histogram) \| (.*) \| (.*) \|$", re.MULTILINE)


def metrics_of_the_code() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, kind, labels and help of each, in the order of the code."""
    metrics = Metrics(CollectorRegistry())
    found = []
    for part in (metrics.requests, metrics.queue, metrics.workers):
        for metric in vars(part).values():
            (family,) = metric.collect()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found.append((name, family.type, getattr(metric, "_labelnames", ()), family.documentation))
    return found


def test_the_table_of_metrics_is_what_is_counted() -> None:
    """A dashboard is built from the table; a metric that it does not name is one that nobody looks at."""
    rows = ROW.findall(OPERATING.read_text())
    documented = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), what) for name, kind, labels, what in rows]
    assert documented == metrics_of_the_code()


def test_every_part_counts_on_the_given_registry() -> None:
    """One on a registry of its own would be on no page."""
    metrics = Metrics(CollectorRegistry())
    on_page = {family.name for family in metrics.registry.collect()}
    assert on_page == {name.removesuffix("_total") for name, _, _, _ in metrics_of_the_code()}


def test_every_metric_that_the_documents_name_exists() -> None:
    """A query for a renamed metric finds nothing, and nothing looks like zero."""
    known = {name for name, _, _, _ in metrics_of_the_code()}
    pages = [*OPERATING.parents[1].glob("*.md"), *OPERATING.parent.rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(sluicegate_[a-z_]+)", page.read_text())}
    assert named <= known
