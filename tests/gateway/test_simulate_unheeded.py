"""Limits that decide nothing under a preset: said on stderr, and true."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission.presets import PRESETS
from gateway.simulate_command import simulate_main
from gateway.simulate_unheeded import unheeded

SCENARIO = Path(__file__).parents[1] / "golden" / "baseline.scenario.json"
TRACE = "arrival_s,prompt_tokens,output_tokens,priority\n" + "".join(
    f"{number // 4},{20 + 7 * number},{10 + 5 * (number % 3)},{('interactive', 'batch')[number % 2]}\n"
    for number in range(12)
)
OTHERWISE = {
    "token_budget": "9",
    "prefill_chunk": "2",
    "preferred_sizes": "3",
    "max_queue_delay_ms": "900",
    "progress": "retain",
    "pause_budget": "1",
    "max_passes": "9",
}


def requests_of(trace: Path, out: Path, *options: str) -> bytes:
    """What became of every request under limits that are tight."""
    limits = ("--set", "max_slots=4", "--set", "kv_blocks=16", "--out", str(out))
    assert simulate_main([str(trace), *limits, *options]) == 0
    return (out / "request_summary.json").read_bytes()


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_said_to_change_nothing_changes_nothing(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong note would be worse than none."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    as_it_is = requests_of(trace, tmp_path / "as-it-is", "--preset", preset)
    for limit, value in OTHERWISE.items():
        said = list(unheeded([PRESETS[preset]], {limit: value}))
        changed = requests_of(trace, tmp_path / limit, "--preset", preset, "--set", f"{limit}={value}")
        assert said == [] or changed == as_it_is, limit
        assert [f"sluicegate simulate: note: {sentence}" for sentence in said] == capsys.readouterr().err.splitlines()


def test_of_several_presets_those_are_named_that_do_not_look_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same limits serve for all that are compared."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    limits = ["--set", "prefill_chunk=7", "--set", "token_budget=64", "--set", "max_slots=4"]
    assert simulate_main([str(trace), "--compare", "orca,sarathi,static", *limits]) == 0
    assert capsys.readouterr().err == (
        "sluicegate simulate: note: --set token_budget, prefill_chunk changes nothing under orca, static:"
        " every prompt is computed whole\n"
    )


def test_a_scenario_hears_of_its_own_limits(capsys: pytest.CaptureFixture[str]) -> None:
    """Its document stays alone on stdout."""
    assert simulate_main([str(SCENARIO), "--set", "priority_preemption=true", "--preset", "vllm-v1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("{")
    assert captured.err.startswith("sluicegate simulate: note: --set priority_preemption changes nothing under vllm-v1")
