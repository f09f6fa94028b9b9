"""`sluicegate fit` and `sluicegate replay` with options, on the logs of a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from admission.record.framing import read_frames
from gateway.fit_command import fit_main
from gateway.replay_command import replay_main
from gateway.simulate_command import simulate_main
from tests.admission.record.recorded import as_bytes

TRACE = "arrival_s,prompt_tokens,output_tokens,priority\n" + "".join(
    f"{number * 0.11:.2f},{20 + number * 37 % 90},{5 + number * 13 % 40},{('high', 'normal', 'batch')[number % 3]}\n"
    for number in range(80)
)
SCENARIO = Path(__file__).parents[1] / "golden" / "baseline.scenario.json"
COST = "linear:base_ms=30,decode_us=500,prefill_us=100,kv_us_per_1k=200,swap_us=0"


@pytest.fixture
def logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Those of a run in which some are refused."""
    trace, out = tmp_path / "load.csv", tmp_path / "out"
    trace.write_text(TRACE)
    limits = ("--set", "max_slots=4", "--set", "max_queue=5")
    assert simulate_main([str(trace), "--cost", COST, *limits, "--out", str(out)]) == 0
    capsys.readouterr()
    return str(out)


def test_fit_prints_the_cost_as_the_cost_option_takes_it(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was fitted can be given to every other command as it is."""
    assert fit_main([logs]) == 0
    option, *told = capsys.readouterr().out.splitlines()
    assert option.startswith("linear:base_ms=29.99")
    assert any("0.0 % median" in line for line in told)
    assert replay_main([logs, "--cost", option]) == 0


def test_with_nothing_changed_and_the_true_cost_nothing_differs(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The replay of a simulation is that simulation, refusals included."""
    assert replay_main([logs, "--preset", "sluicegate", "--cost", COST]) == 0
    told = capsys.readouterr().out
    table = told[told.index("happened") :].splitlines()[1:]
    assert any(line.split()[0] == "queue_full" for line in table)
    assert [line for line in table if line.startswith("  ") and not line.endswith(" =")] == []
    assert "with nothing changed" in told
    assert "estimated   the output of" in told


def test_what_is_missing_is_said_beside_every_answer(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A cost and a prediction from half a run look like those from a whole one."""
    path = Path(logs) / "driver.000000.log"
    path.write_bytes(path.read_bytes()[:-3])
    for command in (lambda: fit_main([logs]), lambda: replay_main([logs, "--preset", "orca"])):
        assert command() == 0
        assert "note: driver.000000.log ends without its end" in capsys.readouterr().err


def test_more_slots_are_predicted_to_serve_more(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The question that an operator has."""
    assert replay_main([logs, "--set", "max_slots=16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    completed = {side: sum(each["completed"] for each in answer[side]) for side in ("happened", "replayed")}
    assert completed["happened"] < completed["replayed"] == 80
    assert answer["estimated_outputs"] == 80 - completed["happened"]


def test_what_a_preset_does_not_look_at_is_said(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else somebody takes the same figures for an answer."""
    assert replay_main([logs, "--preset", "orca", "--set", "prefill_chunk=64"]) == 0
    assert "note: --set prefill_chunk changes nothing under orca" in capsys.readouterr().err


def test_objectives_decide_what_is_good(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever promises less has kept more."""
    good = []
    for objective in ("ttft=1ms", "ttft=60s,gap=60s,whole=100s"):
        assert replay_main([logs, "--objective", objective, "--json"]) == 0
        good.append(sum(each["good"] for each in json.loads(capsys.readouterr().out)["happened"]))
    assert good[0] == 0 < good[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--objective", "speed=1s"], "--objective speed=1s: must be ttft, gap or whole"),
        (["--set", "max_tokens=3"], "unknown name"),
        (["--set", "max_slots=1000"], "token_budget must be at least max_slots"),
        (["--cost", "cheap"], "--cost cheap: must be"),
        (["--json", "--model", "other"], "nothing was offered for a model 'other'"),
        (["--model", "other"], "nothing was offered for a model 'other'"),
        (["--objective", ""], "--objective : must be ttft, gap or whole"),
        (["--cost", ""], "--cost : must be"),
        (["--preset", "none"], "invalid choice"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    options: list[str], sentence: str, logs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with another exit code than a difference."""
    try:
        code: object = replay_main([logs, *options])
    except SystemExit as end:
        code = end.code
    assert code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("options", [[], ["--cost", "constant:5"]])
def test_where_nothing_ran_there_is_no_answer(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All were refused, say: no figure of a replay could be held against anything."""
    trace, out = tmp_path / "load.csv", tmp_path / "out"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    assert simulate_main([str(trace), "--cost", COST, "--out", str(out)]) == 0
    (path,) = out.glob("driver.*.log")
    opened, *_ = read_frames(path.read_bytes())
    path.write_bytes(as_bytes([opened]))
    capsys.readouterr()
    assert replay_main([str(out), "--preset", "orca", *options]) == 2
    assert "no iteration was executed" in capsys.readouterr().err


def test_a_scenario_knows_no_time_to_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its iterations are all alike; better a refusal than a cost of a microsecond."""
    assert simulate_main([str(SCENARIO), "--out", str(tmp_path / "out")]) == 0
    assert fit_main([str(tmp_path / "out")]) == 2
    assert "knows no time" in capsys.readouterr().err
    assert replay_main([str(tmp_path / "out")]) == 0
    assert "queue: not checked: a scenario has a queue of its own" in capsys.readouterr().out


def test_acts_that_are_missing_are_said_to_be(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A check of which nobody knows that it did not happen is none."""
    assert replay_main([logs]) == 0
    assert "80 offers and" in capsys.readouterr().out
    assert replay_main([f"{logs}/driver.000000.log"]) == 0
    assert "queue: not checked: there is no door's log" in capsys.readouterr().out
