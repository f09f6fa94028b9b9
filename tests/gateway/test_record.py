"""A request's account."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.metrics import Metrics
from gateway.record import Ending, RequestRecord
from tests.gateway.counted import counted


def test_a_request_ends_once() -> None:
    """Counts that clients' requests must add up to cannot bear a second end."""
    metrics = Metrics(CollectorRegistry())
    record = RequestRecord(metrics, endpoint="/v1/completions", request_id="a", client_request_id=None)
    record.end(Ending.COMPLETED, status=200)
    with pytest.raises(RuntimeError):
        record.end(Ending.CANCELLED, status=499)
    assert counted(metrics.registry, "sluicegate_requests_total", outcome="completed") == 1
    assert counted(metrics.registry, "sluicegate_requests_total") == 1
    assert counted(metrics.registry, "sluicegate_streams_open") == 0
