"""Workers that a test may start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import structlog

from tests.workers.running_worker import Start, Worker
from workers.link import LinkTimes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts workers, and stops them after the test."""
    started: list[Worker] = []
    with structlog.testing.capture_logs() as log:

        def build(
            *, secret: bytes = b"", times: LinkTimes | None = None, faults: Sequence[Mapping[str, object]] = ()
        ) -> Worker:
            worker = Worker(tmp_path, log, secret=secret, times=times, faults=faults)
            started.append(worker)
            worker.start()
            return worker

        yield build
        for worker in started:
            worker.stop()
