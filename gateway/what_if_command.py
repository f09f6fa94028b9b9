"""``sluicegate replay`` with another preset, limits, cost or objectives: what would have happened, beside what did.

The recorded offers go through the queue rule and the schedulers again; iterations take what a cost model fitted to the
same logs says. With nothing changed the table shows how far that is from the truth: the error to keep in mind for all
other answers.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from admission.cost import CostModel
from admission.record.clocks import Clocks
from admission.record.course import Course
from admission.record.entries import LogEntry, Opened
from admission.record.fates import Fates, read_fates
from admission.record.figures import ClassFigures, Objectives, figures
from admission.record.fit import FitError, error_of
from admission.record.what_if import Offers, num_unfinished, offers_of, replay_offers, span_us
from gateway.command_line import note
from gateway.fit_command import NOTHING_RAN, fit, fit_lines, read_courses
from gateway.log_files import BadLog, Logs
from gateway.log_stories import clock_remarks, entries_of
from gateway.simulate_cost import cost_option, parse_cost
from gateway.simulate_errors import OptionError
from gateway.simulate_settings import parse_changes
from gateway.simulate_unheeded import unheeded
from gateway.what_if_report import table
from gateway.what_if_setup import SETTINGS, Recorded, models_of, recorded

DEFAULT_OBJECTIVES = "ttft=1s,gap=200ms"
"""What most people who chat still find quick: an answer that begins within a second, and five tokens in another."""

_OBJECTIVE = re.compile(r"(ttft|gap|whole)=([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)")
_UNIT_US = {"ms": 1_000, "s": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer. ``fit_error`` is that of the cost model in use, fitted or given."""

    preset: str
    cost: CostModel
    courses: tuple[Course, ...]
    fit_error: FitError
    offers: Offers
    happened: Fates
    replayed: Fates


def wants_what_if(arguments: argparse.Namespace) -> bool:
    """Whether these arguments ask what would have happened, and not for a check."""
    asked = (arguments.preset, arguments.cost, arguments.objective, arguments.model)
    return arguments.json or bool(arguments.set) or any(option is not None for option in asked)


def add_options(parser: argparse.ArgumentParser, presets: Sequence[str]) -> None:
    parser.add_argument("--preset", choices=tuple(presets), metavar="P", help="what if this had been the preset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="what if this had been a limit (see below)"
    )
    parser.add_argument("--cost", metavar="COST", help="what an iteration costs; default: fitted to the logs")
    parser.add_argument(
        "--objective",
        metavar="NAME=TIME,...",
        help=f"what a good answer keeps: ttft, gap (mean of a request), whole; default: {DEFAULT_OBJECTIVES}",
    )
    parser.add_argument("--model", metavar="NAME", help="which model's requests, if the logs have several")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def epilog() -> str:
    lines = ["--set, to ask what would have happened:"]
    return "\n".join(lines + [f"  {name:<22}{setting.meaning}" for name, setting in SETTINGS.items()])


def what_if(arguments: argparse.Namespace, logs: Logs) -> str:
    """What to print, after what is to be known of the logs has been. Raises ``BadLog`` and ``OptionError``."""
    objectives = parse_objectives(DEFAULT_OBJECTIVES if arguments.objective is None else arguments.objective)
    drivers, doors = [entries_of(log) for log in logs.drivers], [entries_of(log) for log in logs.doors]
    model = _model(arguments.model, doors)
    drivers_of = [entries for entries in drivers if getattr(entries[0], "model", None) == model]
    doors_of = [_of_model(entries, model) for entries in doors]
    clocks = Clocks([*drivers, *doors])
    ran = recorded(drivers_of, doors_of, model, clocks)
    ids = {entry.driver_id for entries in drivers_of for entry in entries if isinstance(entry, Opened)}
    courses = tuple([course for course in read_courses(logs) if course.driver_id in ids])
    happened = read_fates(
        [(entries, clocks.offset_us(whole)) for entries, whole in zip(doors_of, doors, strict=True)], courses
    )
    answer = _answer(ran, happened, courses, arguments)
    note("replay", [*logs.remarks(), *clock_remarks(doors, clocks)])
    if arguments.json:
        return _json(answer, objectives)
    return _text(answer, ran, objectives, arguments)


def parse_objectives(text: str) -> Objectives:
    """Raises ``OptionError``."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _OBJECTIVE.fullmatch(part.strip())
        if match is None or match[1] in found:
            raise OptionError(f"--objective {text}: must be ttft, gap or whole, each once, as in ttft=500ms,gap=0.1s")
        found[match[1]] = round(float(match[2]) * _UNIT_US[match[3]])
    return Objectives(first_token_us=found.get("ttft"), gap_us=found.get("gap"), whole_us=found.get("whole"))


def _model(asked: str | None, doors: Sequence[Sequence[LogEntry]]) -> str:
    models = models_of(doors)
    if asked is not None and asked not in models:
        raise BadLog(
            f"nothing was offered for a model {asked!r} in these logs; known are {', '.join(models) or 'none'}"
        )
    if asked is None and len(models) != 1:
        raise BadLog(
            f"these logs have offers for several models; choose one by --model: {', '.join(models)}"
            if models
            else "nothing was offered in these logs: what would have happened takes those of the doors, too"
        )
    return asked or models[0]


def _of_model(entries: Sequence[LogEntry], model: str) -> tuple[LogEntry, ...]:
    return tuple([entry for entry in entries if getattr(entry, "model", model) == model])


def _cost(asked: str | None, courses: Sequence[Course]) -> tuple[CostModel, FitError]:
    """The cost model that was asked for, or the fitted one, and how far it is from the logs."""
    if asked is None:
        return fit(courses)
    cost = parse_cost(asked).cost
    iterations = [timed for course in courses for timed in course.iterations]
    if not iterations:
        raise BadLog(NOTHING_RAN)
    return cost, error_of(cost, iterations)


def _answer(ran: Recorded, happened: Fates, courses: tuple[Course, ...], arguments: argparse.Namespace) -> WhatIf:
    cost, error = _cost(arguments.cost, courses)
    changes = parse_changes(arguments.set, SETTINGS)
    setup = ran.setup(cost, arguments.preset, changes)
    note("replay", unheeded([setup.preset], changes))
    offers = offers_of(happened, {cls.name: cls for cls in ran.classes})
    return WhatIf(
        preset=setup.preset.name,
        cost=cost,
        courses=courses,
        fit_error=error,
        offers=offers,
        happened=happened,
        replayed=replay_offers(offers, setup, happened),
    )


def _text(answer: WhatIf, ran: Recorded, objectives: Objectives, arguments: argparse.Namespace) -> str:
    changed = [f"preset {answer.preset}"] if answer.preset != ran.preset.name else []
    changed += arguments.set
    arrived_s = span_us(answer.happened.offered) / 1_000_000
    lines = [
        f"recorded    {len(answer.offers.arrivals):,} requests within {arrived_s:,.3f} s",
        f"            drivers: {_drivers(ran)}, preset: {ran.preset.name}",
        f"replayed    {', '.join(changed) or 'with nothing changed: what differs is the error of the simulation'}",
        f"cost        {cost_option(answer.cost)}",
        *fit_lines(answer.courses, answer.fit_error),
        *_notes(answer),
        "",
        table(figures(answer.happened, objectives), figures(answer.replayed, objectives), objectives),
    ]
    return "\n".join(lines)


def _drivers(ran: Recorded) -> str:
    at_once = len(ran.drivers)
    return str(at_once) if at_once == ran.num_logged else f"{at_once} at once, of {ran.num_logged} in the logs"


def _notes(answer: WhatIf) -> list[str]:
    notes = []
    if answer.offers.num_estimated:
        notes.append(f"estimated   the output of {answer.offers.num_estimated:,} requests that were refused or cut")
    if unfinished := num_unfinished(answer.happened):
        notes.append(f"unfinished  {unfinished:,} requests when the logs end; the replay finishes them")
    known = {fate.offer.sequence_id for fate in answer.happened.offered}
    under_way = sum(
        path.is_partial and name not in known for course in answer.courses for name, path in course.paths.items()
    )
    if under_way:
        notes.append(f"left out    {under_way:,} requests that were under way when the logs begin")
    notes.append("assumed     every driver is there all the time, workers are alike, and claims take no time")
    return notes


def _json(answer: WhatIf, objectives: Objectives) -> str:
    document = {
        "preset": answer.preset,
        "cost": cost_option(answer.cost),
        "fit_error": {
            "iterations": answer.fit_error.num_iterations,
            "median": answer.fit_error.median,
            "p90": answer.fit_error.p90,
            "total": answer.fit_error.total,
        },
        "estimated_outputs": answer.offers.num_estimated,
        "unfinished": num_unfinished(answer.happened),
        "span_us": span_us(answer.happened.offered),
        "happened": [_document(each) for each in figures(answer.happened, objectives)],
        "replayed": [_document(each) for each in figures(answer.replayed, objectives)],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _document(each: ClassFigures) -> dict[str, Any]:
    return {
        "class": each.name,
        "requests": each.num_requests,
        "completed": each.num_completed,
        "good": each.num_good,
        "outcomes": dict(each.outcomes),
        "first_token_us": each.first_token and each.first_token._asdict(),
        "gap_us": each.gap and each.gap._asdict(),
        "whole_us": each.whole and each.whole._asdict(),
        "preempted_for_slot": each.slot_preemptions,
        "preempted_for_kv": each.kv_preemptions,
    }
