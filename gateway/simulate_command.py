"""``sluicegate simulate``: run a scenario or an arrival trace through the scheduler that serves.

A scenario prints ``scheduler_trace.json`` on stdout, its summary on stderr; a trace prints its summary. ``--compare``
prints one table for several presets instead. ``--out DIR`` writes files, which appear only when all has succeeded; with
``--compare`` each preset has a folder of its own in it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from admission.machines import MACHINES, Machine
from admission.presets import PRESETS
from admission.scenario import Scenario, ScenarioError, with_policy
from admission.summary import Summary
from admission.trace_csv import PRIORITIES, TraceFile
from gateway.command_line import LineParser, complain, note, refuse, run, say
from gateway.simulate_arrivals import draw_arrivals
from gateway.simulate_compare import comparison
from gateway.simulate_cost import parse_cost
from gateway.simulate_errors import InputError, OptionError
from gateway.simulate_input import read_input
from gateway.simulate_report import heading, in_force, policy_values, report
from gateway.simulate_run import run_scenario, run_trace
from gateway.simulate_settings import (
    SCENARIO_SETTINGS,
    TRACE_SETTINGS,
    Setting,
    parse_changes,
    trace_setup,
    trace_values,
)
from gateway.simulate_unheeded import unheeded
from gateway.staging import Staging, staged

SCENARIO_PRESET = "tutorial"
TRACE_PRESET = "sluicegate"


def simulate_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code. Bad input gives one line on stderr and 2."""
    arguments = _parser().parse_args(argv)
    return run("simulate", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    try:
        with _ending_in_order():
            _simulate(arguments)
    except InputError as error:
        return refuse("simulate", f"{arguments.input}: {error}")
    except OptionError as error:
        return refuse("simulate", str(error))
    except OSError as error:
        if arguments.out is None or isinstance(error, BrokenPipeError):
            raise  # then it is the output's
        return refuse("simulate", f"--out: {error.filename or arguments.out}: {error.strerror or error}")
    return 0


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an error does, so that nothing half-written is left."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _simulate(arguments: argparse.Namespace) -> None:
    names = _presets(arguments)
    machine = parse_cost(arguments.cost)
    found = read_input(arguments.input)
    with nullcontext() if arguments.out is None else staged(arguments.out) as staging:
        if isinstance(found, Scenario):
            _simulate_scenario(arguments, found, names or (SCENARIO_PRESET,), machine, staging)
        else:
            _simulate_trace(arguments, found, names or (TRACE_PRESET,), machine, staging)


def _presets(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The presets asked for; none: the input's own default."""
    if arguments.compare is None:
        return () if arguments.preset is None else (arguments.preset,)
    names = tuple(name.strip() for name in arguments.compare.split(","))
    for name in names:
        if name not in PRESETS:
            raise OptionError(f"--compare: unknown preset {name!r}; known are {', '.join(PRESETS)}")
    if len(set(names)) < len(names):
        raise OptionError("--compare: a preset is named twice")
    if arguments.preset is not None:
        raise OptionError("--preset and --compare: give one of them")
    return names


def _simulate_scenario(
    arguments: argparse.Namespace,
    scenario: Scenario,
    names: Sequence[str],
    machine: Machine,
    staging: Staging | None,
) -> None:
    if arguments.arrivals is not None:
        raise OptionError("--arrivals is for traces: a scenario says when its requests arrive")
    changes = parse_changes(arguments.set, SCENARIO_SETTINGS)
    try:
        scenario = with_policy(scenario, changes)
    except ScenarioError as error:
        raise OptionError(f"--set: {error}") from None
    note("simulate", unheeded([PRESETS[name] for name in names], changes))
    runs = {
        name: run_scenario(scenario, PRESETS[name], machine.cost, staging=staging, folder=_folder(name, names))
        for name in names
    }
    policy = scenario.policy
    title = f"{arguments.input.name}: {len(scenario.requests):,} requests"
    rules = in_force(names, machine, policy_values(policy))
    if arguments.compare is not None:
        say(title, rules, "", comparison({name: run.summary for name, run in runs.items()}))
        return
    (run,) = runs.values()
    say(run.document)
    print(end="", flush=True)  # noqa: T201 - before what is said of it
    text = report(run.summary, token_budget=policy.token_budget, kv_blocks=None, max_slots=policy.max_active)
    print(title, rules, "", text, sep="\n", file=sys.stderr)  # noqa: T201 - stdout is the document's


def _simulate_trace(
    arguments: argparse.Namespace, found: TraceFile, names: Sequence[str], machine: Machine, staging: Staging | None
) -> None:
    if arguments.arrivals is not None:
        found = found.at(draw_arrivals(arguments.arrivals, len(found.arrivals)))
    elif not found.has_times:
        raise InputError("no column arrival_s; say --arrivals burst or --arrivals poisson:RATE[,seed=N]")
    changes = parse_changes(arguments.set, TRACE_SETTINGS)
    setups = {name: trace_setup(PRESETS[name], machine, changes) for name in names}
    for sentence in found.notes:
        complain("simulate", f"{arguments.input}: note: {sentence}")
    note("simulate", unheeded([PRESETS[name] for name in names], changes))
    arrivals = found.in_order()
    summaries: dict[str, Summary] = {}
    for name, setup in setups.items():
        summaries[name] = run_trace(arrivals, setup, staging=staging, folder=_folder(name, names))
    values = [trace_values(PRESETS[name], machine, changes) for name in names]
    title = heading(arguments.input.name, arrivals)
    if arguments.compare is not None:
        shared = {name: value for name, value in values[0].items() if all(value == other[name] for other in values)}
        say(title, in_force(names, machine, shared), "", comparison(summaries))
        return
    limits = setups[names[0]].limits
    text = report(
        summaries[names[0]],
        token_budget=limits.token_budget,
        kv_blocks=limits.kv_blocks,
        max_slots=limits.max_slots,
    )
    say(title, in_force(names, machine, values[0]), "", text)


def _folder(name: str, names: Sequence[str]) -> str:
    return f"{name}/" if len(names) > 1 else ""


def _folder_path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must name a folder")
    return Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = LineParser("simulate", description="Run a scenario or an arrival trace through the scheduler that serves.")
    parser.epilog = _epilog()
    parser.add_argument(
        "input", type=Path, metavar="INPUT", help="a scenario in JSON, or a trace in CSV (columns: see below)"
    )
    parser.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        metavar="P",
        help=f"scheduling rule; default: {SCENARIO_PRESET} for a scenario, {TRACE_PRESET} for a trace",
    )
    parser.add_argument("--compare", metavar="P1,P2,...", help="one table for several presets, instead of --preset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="set a limit (see below); may be repeated"
    )
    parser.add_argument(
        "--cost", default="cpu-135m", metavar="COST", help="what an iteration costs; default: %(default)s"
    )
    parser.add_argument(
        "--arrivals", metavar="WHEN", help="arrivals of a trace instead of its own: burst, or poisson:RATE[,seed=N]"
    )
    parser.add_argument(
        "--out", type=_folder_path, metavar="DIR", help="write the rows of all iterations and the requests here"
    )
    return parser


def _epilog() -> str:
    lines = [f"presets: {', '.join(PRESETS)}", "", "costs:"]
    lines += [f"  {machine.name:<22}{machine.origin}" for machine in MACHINES.values()]
    lines += ["  constant:MS           every iteration takes so many milliseconds"]
    lines += ["  linear:NAME=N,...     base_ms, decode_us, prefill_us, kv_us_per_1k, swap_us; the rest as cpu-135m"]
    lines += ["", "columns of a trace: arrival_s,prompt_tokens,output_tokens[,priority][,tenant]; others are ignored"]
    lines += [f"priorities: {', '.join(PRIORITIES)}"]
    return "\n".join(lines + _settings("trace", TRACE_SETTINGS) + _settings("scenario", SCENARIO_SETTINGS))


def _settings(kind: str, settings: Mapping[str, Setting]) -> list[str]:
    return ["", f"--set for a {kind}:", *(f"  {name:<22}{setting.meaning}" for name, setting in settings.items())]
