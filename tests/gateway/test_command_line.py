"""A command that reads and prints ends without a stack trace, whatever becomes of its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.command_line import INTERRUPTED, UNREAD, note, run
from tests.gateway.logs_on_disk import simulate_baseline

Capture = pytest.CaptureFixture[str]
COMMANDS = (["replay"], ["explain", "A"], ["explain", "A", "--json"])


def finish(command: list[str], folder: Path, stdout: int) -> subprocess.CompletedProcess[bytes]:
    name, *rest = command
    words = [sys.executable, "-m", "gateway", name, str(folder), *rest]
    return subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_fault(command: list[str], tmp_path: Path) -> None:
    """`sluicegate replay logs | head -1`. Nor is it a success: what was not read may have told of a difference."""
    simulate_baseline(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    done = finish(command, tmp_path, writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (UNREAD, b"")


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A full disk behind `>`: exit code 0 would say that the file is whole."""
    simulate_baseline(tmp_path)
    with Path("/dev/full").open("wb") as full:
        done = finish(["replay"], tmp_path, full.fileno())
    assert (done.returncode, done.stderr) == (2, b"sluicegate replay: the output: No space left on device\n")


def test_an_interrupted_command_says_so(capsys: Capture) -> None:
    """Reading a long log takes a while, and somebody thinks better of it."""

    def work() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs behind it
    try:
        assert run("replay", work) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "sluicegate replay: interrupted\n"


def test_a_note_is_one_line(capsys: Capture) -> None:
    """Whatever a file is called."""
    note("trace", ["the log of a\nb ends"])
    assert capsys.readouterr().err == "sluicegate trace: note: the log of a b ends\n"
