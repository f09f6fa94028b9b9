"""``sluicegate simulate``: run a scenario through the scheduler that serves, and print what it would have done.

The printed document is ``scheduler_trace.json``: termination, policy, trace and requests. ``--out DIR`` writes it there
and its ``requests`` alone as ``request_summary.json``. Both are written beside their place and then renamed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from admission.presets import PRESETS
from admission.scenario import ScenarioError, parse_scenario
from admission.simulate import simulate

BAD_INPUT = 2
LARGEST_INPUT_BYTES = 64 * 1024 * 1024


class _InputError(Exception):
    """The scenario cannot be read; the message is one line."""


def simulate_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code. Bad input gives one line on stderr and 2."""
    arguments = _parser().parse_args(argv)
    try:
        scenario = parse_scenario(_read(arguments.scenario))
        outcome = simulate(scenario, PRESETS[arguments.preset])
        document = outcome.document()
        if arguments.out is not None:
            _write(arguments.out, {"scheduler_trace.json": document, "request_summary.json": document["requests"]})
        print(_render(document))  # noqa: T201 - the command's output
    except (ScenarioError, _InputError) as error:
        print(f"sluicegate simulate: {arguments.scenario}: {_one_line(error)}", file=sys.stderr)  # noqa: T201 - as above
        return BAD_INPUT
    except OSError as error:
        print(f"sluicegate simulate: {_one_line(error)}", file=sys.stderr)  # noqa: T201 - as above
        return BAD_INPUT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluicegate simulate",
        description="Run a scenario through the scheduler and print scheduler_trace.json.",
        allow_abbrev=False,
    )
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.json")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tutorial", help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="also write scheduler_trace.json and request_summary.json here"
    )
    return parser


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_INPUT_BYTES + 1)
    except OSError as error:
        raise _InputError(error.strerror or str(error)) from error
    if len(content) > LARGEST_INPUT_BYTES:
        raise _InputError(f"larger than {LARGEST_INPUT_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _InputError(f"not UTF-8: {error.reason} at byte {error.start}") from error


def _write(folder: Path, documents: dict[str, Any]) -> None:
    """All of them or, if writing fails, none."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".simulate-") as scratch:
        for name, document in documents.items():
            (Path(scratch) / name).write_text(_render(document) + "\n", encoding="utf-8")
        for name in documents:
            (Path(scratch) / name).replace(folder / name)


def _render(document: Any) -> str:
    return json.dumps(document, indent=1)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
