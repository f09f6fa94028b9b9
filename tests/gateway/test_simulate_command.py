"""``sluicegate simulate``: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.command_line import BAD_INPUT
from gateway.simulate_command import simulate_main

GOLDEN = Path(__file__).parents[1] / "golden"
SCENARIO = GOLDEN / "baseline.scenario.json"
EXPECTED = json.loads((GOLDEN / "baseline.expected.json").read_text())


def test_the_whole_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The output can be piped and compared with the golden trace."""
    assert simulate_main([str(SCENARIO), "--preset", "tutorial"]) == 0
    assert json.loads(capsys.readouterr().out) == EXPECTED


def test_out_writes_the_document_and_the_requests(tmp_path: Path) -> None:
    """One file for the scheduler's time line, one for those who only ask how each request fared."""
    folder = tmp_path / "new" / "folder"
    assert simulate_main([str(SCENARIO), "--preset", "tutorial", "--out", str(folder)]) == 0
    assert json.loads((folder / "scheduler_trace.json").read_text()) == EXPECTED
    assert json.loads((folder / "request_summary.json").read_text()) == EXPECTED["requests"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["door.000000.log", "driver.000000.log", "request_summary.json", "scheduler_trace.json"]
    )


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"policy": 1}', b'{"a\\nb": 1}', None])
def test_bad_input_gives_one_line_and_leaves_nothing(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback tells an operator nothing, and half a result looks like one."""
    scenario = tmp_path / "scenario.json"
    if content is not None:
        scenario.write_bytes(content)
    assert simulate_main([str(scenario), "--out", str(tmp_path / "out")]) == BAD_INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_one_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder may be a file."""
    (tmp_path / "out").write_text("here")
    assert simulate_main([str(SCENARIO), "--out", str(tmp_path / "out")]) == BAD_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unknown_preset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the known ones."""
    with pytest.raises(SystemExit) as exit_info:
        simulate_main([str(SCENARIO), "--preset", "orka"])
    assert exit_info.value.code == BAD_INPUT
    assert "tutorial" in capsys.readouterr().err
