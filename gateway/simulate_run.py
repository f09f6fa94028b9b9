"""Runs of `sluicegate simulate`: one preset over one input, its files written, its summary returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

from admission.cost import CostModel
from admission.presets import Preset
from admission.record.entries import LogEntry
from admission.record.framing import FrameWriter
from admission.record.simulated import DRIVER, SimulationLog
from admission.scenario import Scenario
from admission.scenario_rows import summarize
from admission.simulate import simulate
from admission.summary import Summary, Tally
from admission.trace_csv import Arrival
from admission.trace_run import TraceRun
from admission.trace_setup import TraceSetup
from gateway.progress_bar import ProgressBar
from gateway.simulate_errors import OptionError
from gateway.staging import Staging

MOST_US = (1 << 63) - 1

ROWS_FILE = "scheduler_trace.jsonl"
DOCUMENT_FILE = "scheduler_trace.json"
REQUESTS_FILE = "request_summary.json"
DRIVER_LOG_FILE = "driver.000000.log"
DOOR_LOG_FILE = "door.000000.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRun:
    """What came of a scenario: ``document`` is the text of ``scheduler_trace.json``."""

    document: str
    summary: Summary


def run_scenario(
    scenario: Scenario, preset: Preset, cost: CostModel, *, staging: Staging | None, folder: str = ""
) -> ScenarioRun:
    """Run a scenario; with ``staging``, write its document, its requests and its logs, below ``folder`` in it."""
    with _logs(staging, folder) as log:
        outcome = simulate(scenario, preset, log)
    document = outcome.document()
    text = _render(document)
    if staging is not None:
        staging.write(folder + DOCUMENT_FILE, text.encode())
        staging.write(folder + REQUESTS_FILE, _render(document["requests"]).encode())
    return ScenarioRun(document=text, summary=summarize(scenario, outcome, preset, cost))


def run_trace(arrivals: Sequence[Arrival], setup: TraceSetup, *, staging: Staging | None, folder: str = "") -> Summary:
    """Run a trace; with ``staging``, write a line per iteration and the logs as they come, and then the requests."""
    tally = Tally(max_slots=setup.limits.max_slots, kv_blocks=setup.limits.kv_blocks)
    with (
        ProgressBar(setup.preset.name, len(arrivals)) as bar,
        nullcontext() if staging is None else staging.create(folder + ROWS_FILE) as file,
        _logs(staging, folder) as log,
    ):
        run = TraceRun(arrivals, setup, log)
        for row in run.iterations():
            if row.at_us + row.took_us > MOST_US:
                raise OptionError("--cost: simulated time goes beyond 64 bits of microseconds")
            tally.add(row)
            if file is not None:
                file.write(orjson.dumps(row.document(), option=orjson.OPT_APPEND_NEWLINE))
            bar.show(run.num_done)
    if staging is not None:
        lines = [orjson.dumps(name) + b": " + orjson.dumps(record.document()) for name, record in run.records.items()]
        staging.write(folder + REQUESTS_FILE, b"{\n" + b",\n".join(lines) + b"\n}\n")
    return tally.summary(run.records.values())


@contextmanager
def _logs(staging: Staging | None, folder: str) -> Iterator[SimulationLog | None]:
    """Files for the logs of a run, in the format of a gateway's."""
    if staging is None:
        yield None
        return
    with staging.create(folder + DRIVER_LOG_FILE) as driver, staging.create(folder + DOOR_LOG_FILE) as door:
        yield SimulationLog(drivers={DRIVER: _writes(driver)}, door=_writes(door))


def _writes(file: BinaryIO) -> Callable[[LogEntry], None]:
    frames = FrameWriter()
    file.write(frames.start())

    def write(entry: LogEntry) -> None:
        file.write(frames.frame(entry))

    return write


def _render(document: Any) -> str:
    return json.dumps(document, indent=1)
