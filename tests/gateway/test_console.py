"""The console: progress and log lines do not break into each other."""

from __future__ import annotations

import io

from gateway.console import CLEAR_LINE, Console, complaint_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_progress_is_one_line_rewritten_in_place() -> None:
    """A page of "still loading" hides what matters."""
    out = Terminal()
    console = Console(out, Terminal())

    console.progress("loading the model", 1.0)
    console.progress("loading the model", 2.0)

    assert "\n" not in out.getvalue()
    assert out.getvalue().endswith(f"{CLEAR_LINE}loading the model … 2 s")


def test_elsewhere_progress_is_a_plain_line_now_and_then() -> None:
    """A log file wants no control characters and no five lines a second."""
    out = io.StringIO()
    console = Console(out, io.StringIO())

    for tenth in range(205):
        console.progress("loading the model", tenth / 10)

    assert out.getvalue().splitlines() == [
        "loading the model (0 s)",
        "loading the model (10 s)",
        "loading the model (20 s)",
    ]


def test_a_log_line_on_a_terminal_is_readable_and_progress_comes_back_below() -> None:
    """Both are on one screen."""
    screen = Terminal()
    console = Console(screen, screen)
    console.progress("loading the model", 1.0)

    console.child_line("worker 0", '{"event": "model_loaded", "seconds": 2, "level": "info"}')

    last_lines = screen.getvalue().split(CLEAR_LINE)[-1].split("\n")
    assert last_lines[0].startswith("worker 0 | ")
    assert "model_loaded" in last_lines[0]
    assert '{"' not in last_lines[0]
    assert last_lines[1] == "loading the model … 1 s"


def test_elsewhere_records_pass_through_untouched_and_plain_lines_get_a_name() -> None:
    """A collector parses the first; the second would be nobody's otherwise."""
    err = io.StringIO()
    console = Console(io.StringIO(), err)
    record = '{"event": "model_loaded", "process": "worker 0"}'

    console.child_line("worker 0", record)
    console.child_line("worker 0", "Segmentation fault")
    console.child_line("worker 0", "{not json")

    assert err.getvalue().splitlines() == [record, "worker 0 | Segmentation fault", "worker 0 | {not json"]


def test_a_complaint_is_a_plain_line_or_the_event_of_a_failure() -> None:
    """An error message shows what was said, not how it was wrapped, and nothing that was in order."""
    assert complaint_of('{"event": "no such model", "level": "error"}') == "no such model"
    assert complaint_of('{"event": "no memory", "level": "critical"}') == "no memory"
    assert complaint_of("no such model") == "no such model"
    assert complaint_of('{"event": "driver_connected", "level": "info"}') == ""
