"""The command says what it covered, what is missing, and where decisions part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from admission.record.entries import Stepped
from gateway.replay_command import replay_main
from tests.admission.record.recorded import busy_recording
from tests.gateway.logs_on_disk import flip, simulate_baseline, write_recording

Capture = pytest.CaptureFixture[str]


def test_a_whole_log_is_the_same(tmp_path: Path, capsys: Capture) -> None:
    """One line for each driver, and nothing to remark."""
    write_recording(tmp_path)
    assert replay_main([str(tmp_path)]) == 0
    line, queue = capsys.readouterr().out.splitlines()
    assert line.startswith("g0/w0/1: ")
    assert line.endswith("are the same, byte for byte (3 segments)")
    assert queue == "queue: not checked: there is no door's log in these files"


def test_a_simulation_is_replayed_like_a_run(tmp_path: Path, capsys: Capture) -> None:
    """One scheduler serves and simulates."""
    assert replay_main([str(simulate_baseline(tmp_path))]) == 0
    assert "simulated: 7 plans" in capsys.readouterr().out.splitlines()[-2]


def test_a_flipped_byte_is_refused(tmp_path: Path, capsys: Capture) -> None:
    """Never replayed as if it were whole."""
    path = write_recording(tmp_path)[1]
    flip(path, 900)
    assert replay_main([str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert path.name in captured.err
    assert "checksum" in captured.err


def test_a_cut_log_is_replayed_and_reported(tmp_path: Path, capsys: Capture) -> None:
    """What is there holds; that it is not all is said."""
    path = write_recording(tmp_path)[2]
    path.write_bytes(path.read_bytes()[:-5])
    assert replay_main([str(tmp_path)]) == 0
    assert f"{path.name} ends without its end" in capsys.readouterr().out


def test_a_difference_names_step_events_and_field(tmp_path: Path, capsys: Capture) -> None:
    """And exits with 1, for whoever runs it before a release."""
    recording = busy_recording()
    index, entry = next(
        (index, entry)
        for index, entry in enumerate(recording.segments[1])
        if isinstance(entry, Stepped) and entry.step.plan is not None and entry.events
    )
    other = replace(entry.step, want=replace(entry.step.want, slots=99))
    recording.segments[1][index] = replace(entry, step=other)
    path = write_recording(tmp_path, recording)[1]
    assert replay_main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert entry.step.plan is not None
    assert f"plan {entry.step.plan.step} comes out otherwise (record {index} of {path.name})" in told
    assert "field:    want.slots" in told
    assert "recorded: 99" in told


def test_a_door_alone_has_nothing_to_replay(tmp_path: Path, capsys: Capture) -> None:
    """It says so, instead of success."""
    folder = simulate_baseline(tmp_path)
    capsys.readouterr()
    assert replay_main([str(folder / "door.000000.log")]) == 2
    assert "no driver's log" in capsys.readouterr().err
