"""The progress bar: on a terminal, and only there."""

from __future__ import annotations

import io

from gateway.console import CLEAR_LINE
from gateway.progress_bar import WIDTH, ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(out: io.StringIO, times_s: list[float]) -> str:
    clock = iter([0.0, *times_s])
    with ProgressBar("orca", 200, out=out, seconds=lambda: next(clock)) as bar:
        for done in range(len(times_s)):
            bar.show(done * 50)
    return out.getvalue()


def test_a_long_run_on_a_terminal_shows_how_far_it_is_and_cleans_up() -> None:
    """One line, rewritten; what is printed afterwards starts on a clean one."""
    shown = draw(Terminal(), [0.1, 0.6, 0.65, 9.0])
    assert shown.count("\n") == 0
    assert [part for part in shown.split(CLEAR_LINE) if part] == [
        f"orca {'█' * (WIDTH // 4)}{'░' * (WIDTH - WIDTH // 4)}  25 % 1 s",
        f"orca {'█' * (WIDTH * 3 // 4)}{'░' * (WIDTH - WIDTH * 3 // 4)}  75 % 9 s",
    ]
    assert shown.endswith(CLEAR_LINE)


def test_elsewhere_it_writes_nothing() -> None:
    """Logs and pipes are no place for control characters."""
    assert draw(io.StringIO(), [1.0, 2.0]) == ""
