"""The input of `sluicegate simulate`: a scenario in JSON or a trace in CSV, told apart and parsed."""

from __future__ import annotations

from pathlib import Path

from admission.scenario import Scenario, ScenarioError, parse_scenario
from admission.trace_csv import TraceError, TraceFile, parse_trace
from gateway.simulate_errors import InputError

LARGEST_INPUT_BYTES = 64 * 1024 * 1024
"""Some three million rows, which take a few gigabytes of memory as requests."""


def read_input(path: Path) -> Scenario | TraceFile:
    """What the file holds: a trace if it is called ``.csv``, a scenario if ``.json`` or if it begins like JSON.

    Raises ``InputError``.
    """
    text = _read(path)
    suffix = path.suffix.lower()
    try:
        if suffix == ".json" or (suffix != ".csv" and text.lstrip().startswith("{")):
            return parse_scenario(text)
        return parse_trace(text)
    except (ScenarioError, TraceError) as error:
        raise InputError(str(error)) from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_INPUT_BYTES + 1)
    except OSError as error:
        raise InputError(error.strerror or str(error)) from error
    if len(content) > LARGEST_INPUT_BYTES:
        raise InputError(f"larger than {LARGEST_INPUT_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason} at byte {error.start}") from error
