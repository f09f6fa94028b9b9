"""``sluicegate explain``: what happened to one request, in sentences."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from admission.record.entries import TimeUnit
from admission.record.explain import Explanation, UnknownRequest
from gateway.command_line import LineParser, note, refuse, run, say
from gateway.log_files import BadLog
from gateway.log_stories import read_stories, when

UNKNOWN = 1


def explain_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code: 1 when no log knows the request."""
    arguments = _parser().parse_args(argv)
    return run("explain", lambda: _explain(arguments))


def _explain(arguments: argparse.Namespace) -> int:
    try:
        stories = read_stories(arguments.logs)
        explanations = stories.explainer().request(arguments.request_id)
    except BadLog as error:
        return refuse("explain", str(error))
    except UnknownRequest:
        refuse("explain", f"no request {arguments.request_id!r} in these logs")
        return UNKNOWN
    note("explain", stories.remarks)
    if arguments.json:
        say(orjson.dumps([asdict(each) for each in explanations], option=orjson.OPT_INDENT_2).decode())
    else:
        say(*_lines(explanations, stories.clocks.unit))
    return 0


def _lines(explanations: Sequence[Explanation], unit: TimeUnit) -> list[str]:
    labels = [[when(sentence, unit) for sentence in each.sentences] for each in explanations]
    width = max((len(label) for some in labels for label in some), default=0)
    lines: list[str] = []
    for each, some in zip(explanations, labels, strict=True):
        lines.append(each.about)
        lines += [f"  {label:<{width}}  {told.text}" for label, told in zip(some, each.sentences, strict=True)]
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = LineParser("explain", description="Tell what happened to one request, from recorded logs.")
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="logs of gateways: files, or their folders")
    parser.add_argument("request_id", metavar="REQUEST_ID", help="as in the header x-request-id and in every log line")
    parser.add_argument("--json", action="store_true", help="the same as data")
    return parser
