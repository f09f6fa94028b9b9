"""``sluicegate trace``: pictures of a recorded run, for Perfetto or as a page that needs nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import orjson

from admission.record.entries import TimeUnit
from admission.record.explain import Explainer
from admission.record.perfetto import trace_events
from admission.record.picture import Picture, picture
from admission.record.sentences import counted
from gateway.command_line import LineParser, note, refuse, run
from gateway.log_files import BadLog
from gateway.log_stories import read_stories, when
from gateway.trace_page import Numbered, page


def trace_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code."""
    arguments = _parser().parse_args(argv)
    return run("trace", lambda: _trace(arguments))


def _trace(arguments: argparse.Namespace) -> int:
    if arguments.perfetto is None and arguments.html is None:
        return refuse("trace", "say what to write: --perfetto FILE, --html FILE, or both")
    try:
        stories = read_stories(arguments.logs)
        drawn = picture(stories.drivers, stories.doors, stories.clocks)
        explainer = stories.explainer()
        if arguments.perfetto is not None:
            _write(arguments.perfetto, orjson.dumps(trace_events(drawn, _names(explainer))))
        if arguments.html is not None:
            _write(arguments.html, page(drawn, _numbered(explainer, stories.clocks.unit), facts=_facts(drawn)))
    except BadLog as error:
        return refuse("trace", str(error))
    note("trace", stories.remarks)
    return 0


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise BadLog(f"{path}: {error.strerror}") from None


def _names(explainer: Explainer) -> dict[str, str]:
    return {sequence_id: explainer.name_of(sequence_id) for sequence_id in explainer.sequence_ids()}


def _numbered(explainer: Explainer, unit: TimeUnit) -> Numbered:
    rows = []
    for sequence_id in explainer.sequence_ids():
        explanation = explainer.sequence(sequence_id)
        lines = [(when(sentence, unit), sentence.text) for sentence in explanation.sentences]
        rows.append((sequence_id, explanation, explainer.class_of(sequence_id), lines))
    return Numbered(rows)


def _facts(drawn: Picture) -> str:
    iterations = sum(len(driver.levels) for driver in drawn.drivers)
    facts = [
        counted(len(drawn.drivers), "driver"),
        counted(iterations, "iteration"),
        f"{len(drawn.rejections):,} refused",
        counted(sum(len(driver.preemptions) for driver in drawn.drivers), "preemption"),
    ]
    if drawn.unit is TimeUnit.MICROSECONDS:
        facts.append(f"{drawn.ends / 1_000_000:.1f} s")
    return " · ".join(facts)


def _parser() -> argparse.ArgumentParser:
    parser = LineParser(
        "trace", description="Draw what was recorded: slots over iterations, the queue, and the limits."
    )
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="logs of gateways: files, or their folders")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write a Chrome trace (for ui.perfetto.dev)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with everything in it")
    return parser
