"""What a person sees of `sluicegate up`: progress on stdout, the children's log lines on stderr.

On a terminal, progress is one line that is rewritten in place, and JSON log lines are shown readably. Otherwise
progress comes as plain lines now and then, and log lines pass through untouched, for machines.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import structlog

CLEAR_LINE = "\r\x1b[K"
PLAIN_PROGRESS_EVERY_S = 10.0
COMPLAINTS = ("error", "critical")
"""Levels of records that tell of a failure."""


class Console:
    """Progress and log lines side by side, without one breaking into the other."""

    def __init__(self, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> None:
        self._out = out
        self._err = err
        self._live = out.isatty()
        self._readable = err.isatty()
        self._renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        self._progress = ""
        self._stage = ""
        self._next_plain_s = 0.0

    def progress(self, stage: str, elapsed_s: float) -> None:
        """``stage`` has been going on for ``elapsed_s`` seconds."""
        if self._live:
            self._progress = f"{stage} … {elapsed_s:.0f} s"
            self._write(self._out, CLEAR_LINE + self._progress)
        elif stage != self._stage or elapsed_s >= self._next_plain_s:
            self._write(self._out, f"{stage} ({elapsed_s:.0f} s)\n")
            self._next_plain_s = elapsed_s + PLAIN_PROGRESS_EVERY_S
        self._stage = stage

    def say(self, text: str) -> None:
        """Lines that stay, in the place of the progress line."""
        self._clear_progress()
        self._progress = self._stage = ""
        self._write(self._out, text + "\n")

    def complain(self, sentence: str) -> None:
        """Why the command ends."""
        self._clear_progress()
        self._progress = ""
        self._write(self._err, f"sluicegate up: {sentence}\n")

    def child_line(self, name: str, line: str) -> None:
        """One line that the child ``name`` wrote."""
        record = parse_record(line)
        if record is None:
            shown = f"{name} | {line}"
        elif self._readable:
            shown = f"{name} | {self._renderer(None, '', record)}"
        else:
            shown = line
        self._clear_progress()
        self._write(self._err, shown + "\n")
        if self._progress:
            self._write(self._out, self._progress)

    def _clear_progress(self) -> None:
        if self._live and self._progress:
            self._write(self._out, CLEAR_LINE)

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


def parse_record(line: str) -> dict[str, Any] | None:
    """The structured record that ``line`` holds; None when it is plain text."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def complaint_of(line: str) -> str:
    """The sentence by which ``line`` may explain an end; empty when it is a record of something in order."""
    record = parse_record(line)
    if record is None:
        return line
    return str(record["event"]) if record.get("level") in COMPLAINTS else ""
