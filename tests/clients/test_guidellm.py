"""GuideLLM, a benchmark: its own load, its own reading of the streams, its own counting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import Cluster
from workers.engine_settings import DEFAULT_MODEL
from workers.weights import default_cache, find_model

pytestmark = [pytest.mark.system, pytest.mark.torch, pytest.mark.timeout(300)]

NUM_REQUESTS = 40


@pytest.mark.parametrize("kind", ["throughput", "synchronous"])
def test_all_requests_of_a_benchmark_succeed(echo: Cluster, tmp_path: Path, kind: str) -> None:
    """What it counts is what it asked for: every stream whole, with all of its tokens."""
    benchmark = run(echo, tmp_path / "report.json", kind)
    assert benchmark["run_stats"]["requests_made"]["successful"] == NUM_REQUESTS
    assert benchmark["run_stats"]["requests_made"]["errored"] == 0
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] == pytest.approx(12)


def run(cluster: Cluster, report: Path, kind: str) -> dict[str, Any]:
    """One benchmark, as its command reports it."""
    tokenizer = find_model(DEFAULT_MODEL, default_cache(), lambda _: None).path
    options = {
        "--target": cluster.addresses[0],
        "--processor": str(tokenizer),
        "--data": "prompt_tokens=24,output_tokens=12",
        "--rate-type": kind,
        "--max-requests": str(NUM_REQUESTS),
        "--output-path": str(report),
    }
    command = [sys.executable, "-m", "guidellm", "benchmark", "--disable-progress"]
    result = subprocess.run(
        [*command, *(word for option in options.items() for word in option)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return dict(benchmark)
