"""The command line: what it says and how it ends when called wrongly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.cli import main


def test_without_a_command_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The bare command is the first thing that people type."""
    assert main([]) == 0
    assert "sluicegate COMMAND" in capsys.readouterr().out


def test_an_unknown_command_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of commands is right there."""
    assert main(["serve"]) == 2
    captured = capsys.readouterr()
    known = "up, gateway, worker, simulate, replay, fit, explain, trace"
    assert captured.err == f"sluicegate: unknown command 'serve'; known are {known}\n"


@pytest.mark.parametrize("command", ["up", "gateway"])
def test_a_bad_setting_is_one_line_and_exit_code_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a typing mistake."""
    assert main([command, "--prot", "1"]) == 2
    assert capsys.readouterr().err == f"sluicegate {command}: unrecognized arguments: --prot 1\n"


@pytest.mark.parametrize("command", ["up", "gateway"])
def test_each_command_explains_its_settings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` is the reference that is always at hand."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--queue-requests" in capsys.readouterr().out


def test_the_command_itself_loads_nothing_heavy() -> None:
    """A worker started through it must never have held aiohttp or redis, and help should be instant."""
    program = "import sys, gateway.cli; print(sorted({'aiohttp', 'redis', 'torch', 'pydantic'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.strip() == "[]"


def test_simulate_is_a_command_too() -> None:
    """Planners need no model and no Redis."""
    assert main(["simulate", "/no/such/scenario.json"]) == 2
