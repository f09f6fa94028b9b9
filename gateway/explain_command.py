"""``sluicegate explain``: what happened to one request, in sentences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import orjson

from admission.record.entries import DoorOpened, LogEntry, Opened, TimeUnit
from admission.record.explain import Explanation, Sentence, UnknownRequest, explain
from admission.record.snapshot import SnapshotError
from admission.record.story import NoStory, Story, tell
from gateway.log_files import BadLog, Logs, Segment, read_logs

BAD_INPUT = 2
UNKNOWN = 1


def explain_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code: 1 when no log knows the request."""
    arguments = _parser().parse_args(argv)
    try:
        logs = read_logs(arguments.logs)
        stories = stories_of(logs)
        explanations = explain(arguments.request_id, [_entries(door) for door in logs.doors], stories)
    except BadLog as error:
        return _refuse(str(error))
    except UnknownRequest:
        _refuse(f"no request {arguments.request_id!r} in these logs")
        return UNKNOWN
    if arguments.json:
        sys.stdout.buffer.write(
            orjson.dumps([asdict(each) for each in explanations], option=orjson.OPT_INDENT_2) + b"\n"
        )
    else:
        _print(*_lines(explanations, _Times(logs)))
    return 0


def stories_of(logs: Logs) -> list[Story]:
    """The story of each driver. Raises ``BadLog``."""
    stories = []
    for segments in logs.drivers:
        try:
            stories.append(tell(_entries(segments)))
        except (NoStory, SnapshotError) as error:
            raise BadLog(f"{segments[0].path}: {error}") from None
    return stories


def _entries(segments: Sequence[Segment]) -> list[LogEntry]:
    return [entry for segment in segments for entry in segment.entries]


class _Times:
    """How times are shown: iterations as they are, microseconds as seconds since the logs began."""

    def __init__(self, logs: Logs) -> None:
        openings = [segments[0].entries[0] for segments in (*logs.drivers, *logs.doors)]
        known = [opened for opened in openings if isinstance(opened, Opened | DoorOpened)]
        self._begin_us = min(opened.opened_us for opened in known)
        self._is_iterations = any(opened.unit is TimeUnit.ITERATIONS for opened in known)

    def of(self, sentence: Sentence) -> str:
        iterations = _iterations(sentence)
        if self._is_iterations:
            return iterations or f"iteration {sentence.at_us}"
        at = f"{(sentence.at_us - self._begin_us) / 1_000_000:9.3f} s"
        return f"{at}  {iterations}"


def _iterations(sentence: Sentence) -> str:
    if sentence.first is None:
        return ""
    if sentence.first == sentence.last:
        return f"iteration {sentence.first}"
    return f"iterations {sentence.first} to {sentence.last}"


def _lines(explanations: Sequence[Explanation], times: _Times) -> list[str]:
    labels = [[times.of(sentence) for sentence in each.sentences] for each in explanations]
    width = max((len(label) for some in labels for label in some), default=0)
    lines: list[str] = []
    for each, some in zip(explanations, labels, strict=True):
        lines.append(each.about)
        lines += [f"  {label:<{width}}  {told.text}" for label, told in zip(some, each.sentences, strict=True)]
    return lines


def _print(*lines: str) -> None:
    print(*lines, sep="\n")  # noqa: T201 - the command's output


def _refuse(sentence: str) -> int:
    print(f"sluicegate explain: {sentence}", file=sys.stderr)  # noqa: T201 - as above
    return BAD_INPUT


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        self.exit(_refuse(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sluicegate explain",
        description="Tell what happened to one request, from recorded logs.",
        allow_abbrev=False,
    )
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="logs of gateways: files, or their folders")
    parser.add_argument("request_id", metavar="REQUEST_ID", help="as in the header x-request-id and in every log line")
    parser.add_argument("--json", action="store_true", help="the same as data")
    return parser
