"""The golden traces: each scenario under ``tutorial`` gives exactly its expected document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from admission.presets import PRESETS
from admission.scenario import parse_scenario
from admission.simulate import simulate

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(path.name.removesuffix(".scenario.json") for path in GOLDEN.glob("*.scenario.json"))


def test_the_golden_traces_are_there() -> None:
    """An empty folder would make every other test of this file pass."""
    assert "baseline" in NAMES
    assert len(NAMES) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_gives_its_expected_trace(name: str) -> None:
    """These traces fix the rule of the tutorial; any difference is a change of rule."""
    scenario = parse_scenario((GOLDEN / f"{name}.scenario.json").read_text())
    outcome = simulate(scenario, PRESETS["tutorial"])
    assert outcome.document() == json.loads((GOLDEN / f"{name}.expected.json").read_text())
