"""What the commands that read logs share: lines out, one line for what is wrong, and a parser that keeps to that."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

BAD_INPUT = 2


def say(*lines: str) -> None:
    print(*lines, sep="\n")  # noqa: T201 - a command's output


def refuse(command: str, sentence: str) -> int:
    """Say what is wrong; the exit code."""
    print(f"sluicegate {command}: {sentence}", file=sys.stderr)  # noqa: T201 - as above
    return BAD_INPUT


class LogParser(argparse.ArgumentParser):
    """The parser of ``sluicegate COMMAND``. Refuses in one line, like everything else here."""

    def __init__(self, command: str, *, description: str) -> None:
        super().__init__(prog=f"sluicegate {command}", description=description, allow_abbrev=False)
        self._command = command

    def error(self, message: str) -> NoReturn:
        self.exit(refuse(self._command, message))
