"""``sluicegate fit``: what an iteration cost, fitted to recorded logs, and how far from the truth that is.

The coefficients are printed as ``--cost`` takes them; what they predict is the time from report to report, so that the
worker's waits between iterations are in it. The error is that on the iterations to which it was fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from admission.cost import CostModel
from admission.record.clocks import Clocks
from admission.record.course import Course, Timed, follow
from admission.record.entries import TimeUnit
from admission.record.fit import FitError, error_of, fit_cost
from admission.record.snapshot import SnapshotError
from gateway.command_line import LineParser, note, refuse, run, say
from gateway.log_files import BadLog, Logs, read_logs
from gateway.log_stories import entries_of
from gateway.simulate_cost import cost_option

NOTHING_RAN = "no iteration was executed in these logs"


def fit_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code."""
    arguments = _parser().parse_args(argv)
    return run("fit", lambda: _fit(arguments))


def _fit(arguments: argparse.Namespace) -> int:
    try:
        logs = read_logs(arguments.logs)
        courses = read_courses(logs)
        cost, error = fit(courses)
    except BadLog as refusal:
        return refuse("fit", str(refusal))
    note("fit", logs.remarks())
    say(cost_option(cost), *fit_lines(courses, error))
    return 0


def read_courses(logs: Logs) -> tuple[Course, ...]:
    """The course of every driver, on one clock. Raises ``BadLog``."""
    drivers = [entries_of(segments) for segments in logs.drivers]
    if not drivers:
        raise BadLog("there is no driver's log in these files, so no iteration ran in them")
    clocks = Clocks([*drivers, *[entries_of(segments) for segments in logs.doors]])
    if clocks.unit is not TimeUnit.MICROSECONDS:
        raise BadLog("these are logs of a scenario, which counts iterations and knows no time")
    courses = []
    for segments, entries in zip(logs.drivers, drivers, strict=True):
        try:
            course = follow(entries, offset_us=clocks.offset_us(entries))
        except SnapshotError as error:
            raise BadLog(f"{segments[0].path}: {error}") from None
        if course is not None:
            courses.append(course)
    return tuple(courses)


def fit(courses: Sequence[Course]) -> tuple[CostModel, FitError]:
    """One cost model for all drivers, as if their workers were alike. Raises ``BadLog`` where nothing ran."""
    iterations = _iterations(courses)
    cost = fit_cost(iterations)
    if cost is None:
        raise BadLog(NOTHING_RAN)
    return cost, error_of(cost, iterations)


def fit_lines(courses: Sequence[Course], error: FitError) -> list[str]:
    """What a reader should know of a fit."""
    drivers = f"{len(courses)} drivers" if len(courses) > 1 else "1 driver"
    lines = [
        f"fitted to   {error.num_iterations:,} iterations of {drivers}, {error.total_us / 1_000_000:,.3f} s in all",
        f"            {100 * error.wait_share:.1f} % of that the workers waited, which is in the prediction",
        f"error       {100 * error.median:.1f} % median and {100 * error.p90:.1f} % p90 of an iteration's time",
        f"            {100 * error.total:+.2f} % of the time of all",
    ]
    unclear = sum(course.num_unclear for course in courses)
    if unclear:
        lines.append(f"left out    {unclear:,} iterations with sequences that were under way when the log began")
    return lines


def _iterations(courses: Sequence[Course]) -> list[Timed]:
    return [timed for course in courses for timed in course.iterations]


def _parser() -> argparse.ArgumentParser:
    parser = LineParser("fit", description="Fit a cost model to recorded iterations, and tell its error.")
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="logs of a gateway: files, or their folder")
    return parser
