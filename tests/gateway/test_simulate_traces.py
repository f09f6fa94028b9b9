"""``sluicegate simulate`` on traces in CSV: what people see, what is written, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from admission.presets import PRESETS
from gateway import simulate_run
from gateway.command_line import BAD_INPUT, INTERRUPTED
from gateway.simulate_command import simulate_main
from gateway.simulate_report import COLUMNS
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
SHAREGPT = ROOT / "tests" / "traces" / "sharegpt_short.csv"
SCENARIO = ROOT / "tests" / "golden" / "baseline.scenario.json"
HEADER = "arrival_s,prompt_tokens,output_tokens"
EIGHT = "\n".join([HEADER, *(f"0,1,{output}" for output in (20, 45, 80, 120, 150, 90, 60, 200))]) + "\n"


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    path = tmp_path / "eight.csv"
    path.write_text(EIGHT)
    return path


FILES = ["door.000000.log", "driver.000000.log", "request_summary.json", "scheduler_trace.jsonl"]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """What stdout has; stderr is empty, and everything fits the page and is a number."""
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= COLUMNS
    assert "nan" not in captured.out.lower().split()
    return captured.out


def test_the_summary_names_everything_in_force_and_what_came_of_it(
    eight: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures without their conditions are worth nothing."""
    assert simulate_main([str(eight), "--set", "max_slots=8", "--cost", "constant:10"]) == 0
    out = printed(capsys)
    for part in ("preset    sluicegate", "constant:10", "max_slots=8", "max_tokens=2048", "8 of 8 requests completed"):
        assert part in out
    assert "slot-rounds   1,600: 765 useful, 835 wasted (52.19 %)" in out
    assert "held back     never" in out


def test_compare_prints_the_waste_of_held_batches_in_one_table(eight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of 1,600 slot-rounds, for both presets that hold their batch."""
    assert simulate_main([str(eight), "--set", "max_slots=8", "--compare", "static,request-dynamic"]) == 0
    rows = {line[:28].strip(): line[28:].split() for line in printed(capsys).splitlines()}
    assert rows["slot-rounds"] == ["1,600", "1,600"]
    assert (rows["useful"], rows["wasted"]) == (["765", "765"], ["835", "835"])
    assert rows["wasted share"] == ["52.19", "%", "52.19", "%"]
    assert rows["unused token budget"] == ["-", "-"]


def test_all_presets_fit_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """More than stand side by side continue below."""
    assert simulate_main([str(SCENARIO), "--compare", ",".join(PRESETS)]) == 0
    assert printed(capsys).count("requests completed") == 2


def test_out_has_a_line_per_iteration_and_every_request(eight: Path, tmp_path: Path) -> None:
    """What the summary says can be counted again from the files."""
    out = tmp_path / "new" / "out"
    assert simulate_main([str(eight), "--set", "max_slots=8", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    rows = [json.loads(line) for line in (out / "scheduler_trace.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(200))
    assert sum(row["decode"] + len(row["prefill_emitted"]) for row in rows) == 765
    requests = json.loads((out / "request_summary.json").read_text())
    assert [request["completed"] for request in requests.values()] == [19, 44, 79, 119, 149, 89, 59, 199]


def test_a_trace_of_which_nothing_fits_has_a_summary_without_iterations(
    eight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to divide by, and every request has its reason."""
    arguments = [str(eight), "--set", "context_length=10", "--out", str(tmp_path)]
    assert simulate_main(arguments) == 0
    assert "rejected      8 (100.00 %): 8 context_length_exceeded" in printed(capsys)
    assert (tmp_path / "scheduler_trace.jsonl").read_text() == ""
    reasons = {request["rejection"] for request in json.loads((tmp_path / "request_summary.json").read_text()).values()}
    assert reasons == {"context_length_exceeded"}
    assert simulate_main([*arguments[:3], "--compare", "static,orca"]) == 0
    assert "wasted share" in printed(capsys)


def test_compare_gives_each_preset_a_folder(eight: Path, tmp_path: Path) -> None:
    """None overwrites another."""
    out = tmp_path / "out"
    assert simulate_main([str(eight), "--compare", "orca,sarathi", "--out", str(out)]) == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.*")) == [
        f"{preset}/{name}" for preset in ("orca", "sarathi") for name in FILES
    ]


def test_lengths_alone_need_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what can be given."""
    assert simulate_main([str(SHAREGPT)]) == BAD_INPUT
    assert "--arrivals burst or --arrivals poisson:RATE" in capsys.readouterr().err
    assert simulate_main([str(SHAREGPT), "--arrivals", "poisson:20,seed=7", "--cost", "gpu-7b"]) == 0
    assert "300 of 300 requests completed" in printed(capsys)


def test_a_scenario_has_its_summary_beside_the_document_and_takes_limits(capsys: pytest.CaptureFixture[str]) -> None:
    """Stdout stays the document, for programs; the summary is for eyes."""
    assert simulate_main([str(SCENARIO), "--set", "max_queue=0", "--set", "priority_preemption=false"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["policy"]["max_queue"] == 0
    assert "max_queue=0" in captured.err
    assert max(map(len, captured.err.splitlines())) <= COLUMNS


def test_notes_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that was ignored is ignored in silence."""
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER},hits\n0,1,1,0\n")
    assert simulate_main([str(trace)]) == 0
    assert capsys.readouterr().err == f"sluicegate simulate: {trace}: note: ignored columns: hits\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "max_slots"],
        ["--set", "max_slot=3"],
        ["--set", "max_slots=0"],
        ["--set", "max_slots=2.5"],
        ["--set", "max_slots=²"],
        ["--set", "max_slots=none"],
        ["--set", "max_slots=512"],
        ["--set", "max_slots=3", "--set", "max_slots=4"],
        ["--set", "waiting_order=edf"],
        ["--set", "progress=forget"],
        ["--set", "preferred_sizes=4,x"],
        ["--set", "watermark_percent=100"],
        ["--cost", "gpu"],
        ["--cost", "constant:"],
        ["--cost", "constant:-1"],
        ["--cost", "constant:nan"],
        ["--cost", "linear:base_ms"],
        ["--cost", "linear:base=1"],
        ["--cost", "linear:base_ms=1,base_ms=2"],
        ["--arrivals", "poisson"],
        ["--arrivals", "poisson:0"],
        ["--arrivals", "poisson:1,seed=x"],
        ["--compare", "orca,orka"],
        ["--compare", "orca,orca"],
        ["--compare", "orca", "--preset", "orca"],
    ],
    ids=" ".join,
)
def test_a_bad_option_is_one_line_and_writes_nothing(
    arguments: list[str], eight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Type, range and name of every value are checked before anything runs."""
    assert simulate_main([str(eight), "--out", str(tmp_path / "out"), *arguments]) == BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sluicegate simulate: --")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--set", "max_slots=3"], ["--set", "max_active=7"], ["--arrivals", "burst"]])
def test_a_scenario_refuses_what_is_for_traces_or_cannot_work(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own limits have other names, and the same checks as in the file."""
    assert simulate_main([str(SCENARIO), *arguments]) == BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe0", b"a,b\n1,2\n", HEADER.encode(), f"{HEADER}\n0,1\n".encode()])
def test_a_bad_trace_is_one_line_and_writes_nothing(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the file and, where there is one, the line."""
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content)
    assert simulate_main([str(trace), "--out", str(tmp_path / "out")]) == BAD_INPUT
    captured = capsys.readouterr()
    assert captured.err.startswith(f"sluicegate simulate: {trace}: ")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_and_a_missing_file_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slips of the finger."""
    for path in (tmp_path, tmp_path / "missing.csv"):
        assert simulate_main([str(path)]) == BAD_INPUT
        assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupted_run_leaves_nothing(
    eight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle: rows were written already, and no file may look whole."""

    class Interrupted(simulate_run.ProgressBar):
        def show(self, done: int) -> None:
            if done > 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(simulate_run, "ProgressBar", Interrupted)
    assert simulate_main([str(eight), "--out", str(tmp_path / "new" / "out")]) == INTERRUPTED
    assert not (tmp_path / "new").exists()
    assert capsys.readouterr().err == "sluicegate simulate: interrupted\n"


def test_two_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    """A simulation that depends on the order of a dict of one process proves nothing."""
    results = []
    some = tmp_path / "some.csv"
    some.write_text("".join(SHAREGPT.read_text().splitlines(keepends=True)[:81]))
    for seed in ("1", "2"):
        out = tmp_path / seed
        command = [sys.executable, "-m", "gateway", "simulate", str(some), "--arrivals", "poisson:40,seed=1"]
        options = ["--cost", "gpu-7b", "--set", "kv_blocks=400", "--preset", "vllm-v1", "--out", str(out)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [*command, *options], cwd=ROOT, env=environment, capture_output=True, check=True, timeout=60
        )
        results.append([result.stdout, *(path.read_bytes() for path in sorted(out.iterdir()))])
    assert results[0] == results[1]
    assert len(results[0]) == 1 + len(FILES)


async def test_a_run_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM is how a scheduler of jobs or a time limit ends it: half a file would be taken for a whole one."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "gateway", "simulate", str(SHAREGPT), "--arrivals", "burst", "--out", str(out)]
    command += ["--set", "kv_blocks=1000", "--set", "max_queue=none", "--compare", ",".join(PRESETS)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.DEVNULL)
    await wait_until(out.exists, "it has begun to write", timeout_s=30)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 30) == 128 + signal.SIGTERM
    assert not out.exists()


def test_a_time_that_no_file_can_hold_is_refused(
    eight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With and without files alike."""
    cost = ["--cost", "linear:prefill_us=999999999"]
    eight.write_text(HEADER + "\n" + "0,10000000,1\n" * 1_000)
    names = ("context_length", "kv_blocks", "queue_tokens", "max_queue", "prefill_chunk", "token_budget")
    limits = [part for name in names for part in ("--set", f"{name}=none")]
    for out in ([], ["--out", str(tmp_path / "out")]):
        assert simulate_main([str(eight), *cost, *limits, *out]) == BAD_INPUT
        assert "beyond 64 bits" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_name_is_refused(eight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is an unset variable in a script, and would be the current folder."""
    with pytest.raises(SystemExit) as ended:
        simulate_main([str(eight), "--out", ""])
    assert ended.value.code == BAD_INPUT
    assert "--out: must name a folder" in capsys.readouterr().err
