"""The command prints a request's life, or says that it knows none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.explain_command import explain_main
from tests.gateway.logs_on_disk import flip, simulate_baseline

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capsys: Capture) -> Path:
    simulate_baseline(tmp_path)
    capsys.readouterr()
    return tmp_path


def test_a_life_is_printed_in_sentences(folder: Path, capsys: Capture) -> None:
    """As somebody reads it who was asked why an answer took so long."""
    assert explain_main([str(folder), "A"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A: class normal, prompt of 6 tokens, output of at most 3 tokens"
    assert lines[4:6] == [
        "  iteration 1        C (high) preempted it, as every slot was taken; it waits",
        "  iteration 3        resumed in slot 1, with 3 prompt tokens kept",
    ]


def test_a_refusal_is_printed_with_its_limit(folder: Path, capsys: Capture) -> None:
    """Which bound to raise, or why not."""
    assert explain_main([str(folder), "F"]) == 0
    assert "iteration 2  arrived, and was refused: the queue, of 2 places, was full" in capsys.readouterr().out


def test_the_same_is_there_as_data(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """For other programs: kinds, iterations and times apart from the words."""
    simulate_baseline(tmp_path)
    capsysbinary.readouterr()
    assert explain_main([str(tmp_path), "A", "--json"]) == 0
    (explained,) = json.loads(capsysbinary.readouterr().out)
    assert explained["name"] == "A"
    paused = next(sentence for sentence in explained["sentences"] if sentence["kind"] == "paused")
    assert (paused["first"], paused["at_us"], paused["driver_id"]) == (1, 1, "simulated")


def test_what_is_missing_is_a_note(folder: Path, capsys: Capture) -> None:
    """Else a life would seem to end where its log does. On stderr: the output stays what was asked for."""
    path = folder / "door.000000.log"
    path.write_bytes(path.read_bytes()[:-3])
    assert explain_main([str(folder), "A", "--json"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("sluicegate explain: note: door.000000.log ends without its end")
    assert json.loads(told.out)


def test_an_unknown_request_is_told_from_a_bad_log(folder: Path, capsys: Capture) -> None:
    """1 and 2: a script may try other logs in the first case."""
    assert explain_main([str(folder), "Z"]) == 1
    assert "no request 'Z'" in capsys.readouterr().err
    flip(folder / "door.000000.log", 200)
    assert explain_main([str(folder), "A"]) == 2
    assert "damaged" in capsys.readouterr().err
