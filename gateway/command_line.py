"""What commands that read and print share: lines out, one line for what is wrong, and an end without a stack trace."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from gateway.help_text import FoldedHelp

BAD_INPUT = 2
INTERRUPTED = 130
UNREAD = 141
"""Nobody reads our output any more; what a shell says of a program that such a pipe has ended."""


def run(command: str, work: Callable[[], int]) -> int:
    """Do the work of ``sluicegate COMMAND``; the exit code. However it ends, there is at most one line on stderr."""
    try:
        code = work()
        print(end="", flush=True)  # noqa: T201 - here, where an error can still be told
    except BrokenPipeError:  # whoever read our output has seen enough
        _forget_output()
        return UNREAD
    except OSError as error:
        _forget_output()
        return refuse(command, f"the output: {error.strerror}")
    except KeyboardInterrupt:
        complain(command, "interrupted")
        return INTERRUPTED
    return code


def _forget_output() -> None:
    """What waits to be written goes nowhere, else Python would try, and fail, once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(*lines: str) -> None:
    print(*lines, sep="\n")  # noqa: T201 - a command's output


def complain(command: str, sentence: str) -> None:
    """One line on stderr, whatever is in the sentence."""
    print(f"sluicegate {command}: {' '.join(sentence.split())}", file=sys.stderr)  # noqa: T201 - as above


def note(command: str, sentences: Iterable[str]) -> None:
    """What a reader of the output should know of its input."""
    for sentence in sentences:
        complain(command, f"note: {sentence}")


def refuse(command: str, sentence: str) -> int:
    """Say what is wrong; the exit code."""
    complain(command, sentence)
    return BAD_INPUT


class LineParser(argparse.ArgumentParser):
    """The parser of ``sluicegate COMMAND``. Refuses in one line, like everything else here."""

    def __init__(self, command: str, *, description: str) -> None:
        super().__init__(
            prog=f"sluicegate {command}",
            description=description,
            formatter_class=FoldedHelp,
            allow_abbrev=False,
        )
        self._command = command

    def error(self, message: str) -> NoReturn:
        self.exit(refuse(self._command, message))
