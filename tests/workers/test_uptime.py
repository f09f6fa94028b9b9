"""A worker that has served much is as small, and as fast, as one that has just begun."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.workers.engine_support import Options
from tests.workers.random_plans import RandomPlans
from tests.workers.short_requests import ShortRequests
from tests.workers.test_engine_plans import REQUESTS
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from tests.workers.worker_process import worker_process
from workers.loading import load_engine

pytestmark = [pytest.mark.torch, pytest.mark.system, pytest.mark.timeout(300)]

WARM, MORE = 200, 500
MOST_GROWTH = 6 << 20
"""Of the process, in bytes: what the allocator's pools may shift by. A kilobyte kept of each request is less than that,
but torch's tensors are not; ``tests.bench.worker_uptime`` looks at ten thousand."""


def test_memory_does_not_grow_with_the_requests_that_have_ended(tmp_path: Path) -> None:
    """Of all kinds, preempted and swapped as well: whatever is kept of each is a leak, a small one in no hurry."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    flags = {"model": folder, "device": "cpu", "threads": 1, "max-slots": 8, "block-size": 4, "kv-blocks": 40}
    with worker_process(flags | {"swap-mib": 1}) as worker:
        end = worker.connect()
        requests = ShortRequests(end, end.drive(), Random(3))
        for _ in requests.run(WARM):
            pass
        before = worker.resident_bytes
        for report in requests.run(MORE):
            assert report.live_blocks <= 40
        grown = worker.resident_bytes - before
        end.close()
    assert requests.pauses > 0
    assert grown < MOST_GROWTH


def test_an_idle_engine_holds_nothing(tmp_path: Path) -> None:
    """Each table is empty, or bounded by slots and blocks, after whatever has run."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    options = Options(model=str(folder), max_slots=5, kv_blocks=40, swap_mib=1, threads=1)
    engine = load_engine(options, lambda _: None)
    RandomPlans(engine, Random(1)).run(REQUESTS)
    slots = engine._slots
    assert (slots.live_blocks, slots.host_blocks) == (0, 0)
    for table in (slots._states, slots._owners, slots._swapped._tokens, engine._swapped):
        assert len(table) == 0
    assert len(slots._suspects) <= engine.kv_blocks
    assert len(engine._sampling._choosers) <= engine.max_slots
