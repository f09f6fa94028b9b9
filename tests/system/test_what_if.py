"""The questions that recorded logs answer, asked of a live run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.fit_command import fit_main
from gateway.replay_command import replay_main
from tests.system.what_if import BASE_US, record_load

pytestmark = pytest.mark.system

FACTOR = 2.0
"""What a loaded machine may add to either side; how close it is without that, ``tests.bench.what_if`` prints."""


async def test_a_live_load_is_predicted_from_its_own_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two gateways and workers: the logs verify, the fit finds the delays, and the answer is near the truth."""
    outcomes = await record_load(tmp_path, preset="sluicegate", load=0.5, seconds=5.0, seed=1)
    assert all(outcome.is_served for outcome in outcomes)
    logs = str(tmp_path / "logs")

    assert replay_main([logs]) == 0
    assert f"{len(outcomes):,} offers" in capsys.readouterr().out

    assert fit_main([logs]) == 0
    cost = capsys.readouterr().out.splitlines()[0]
    base_ms = float(cost.removeprefix("linear:").split(",")[0].removeprefix("base_ms="))
    assert BASE_US / 1000 / FACTOR < base_ms < BASE_US / 1000 * FACTOR

    assert replay_main([logs, "--preset", "sluicegate", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for happened, replayed in zip(answer["happened"], answer["replayed"], strict=True):
        assert happened["completed"] == replayed["completed"] == happened["requests"]
        assert 1 / FACTOR < replayed["first_token_us"]["p50"] / happened["first_token_us"]["p50"] < FACTOR

    assert replay_main([logs, "--preset", "static", "--set", "max_slots=4"]) == 0
    told = capsys.readouterr().out
    assert "replayed    preset static, max_slots=4" in told
    assert f"{len(outcomes):,} requests within" in told
