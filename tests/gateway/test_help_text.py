"""Help that fits the terminal."""

from __future__ import annotations

import argparse
import contextlib

import pytest

from gateway.cli import main
from gateway.help_text import FoldedHelp

WIDTH = 80
USAGE_OF_SETTINGS = 100  # their library writes descriptions and choices on one line each


@pytest.mark.parametrize(
    ("words", "widest"),
    [
        ((), WIDTH),
        *[((command, "--help"), WIDTH) for command in ("simulate", "replay", "fit", "explain", "trace")],
        *[((command, "--help"), USAGE_OF_SETTINGS) for command in ("up", "gateway")],
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_no_line_of_help_is_wider_than_the_terminal(
    words: tuple[str, ...], widest: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that the terminal breaks anywhere makes a table unreadable."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with contextlib.suppress(SystemExit):
        main(words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if len(line) > widest] == []


def test_what_is_too_long_goes_on_beside_its_label() -> None:
    """And what fits stays as it was written."""
    parser = argparse.ArgumentParser(epilog="table:\n  name    one two three\n\nwords: one, two, three", add_help=False)
    parser.formatter_class = lambda prog: FoldedHelp(prog, width=18)
    assert parser.format_help().split("\n\n", 1)[1] == (
        "table:\n  name    one two\n          three\n\nwords: one, two,\n       three\n"
    )
