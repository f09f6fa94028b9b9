"""Arrival traces in CSV, read strictly: ``arrival_s,prompt_tokens,output_tokens[,priority][,tenant]``.

Columns are found by name, in any order; others are ignored, and the caller is told which. Blank lines are skipped. A
trace without ``arrival_s`` holds lengths alone: whoever runs it has to say when the requests arrive. Rows need not be
in the order of their arrival; those that arrive together keep the order of the file.

Everything that is not exactly right is refused with an error that names the line and the column.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from admission.classes import DEFAULT_CLASSES, INTERACTIVE, SECOND_US, STANDARD, PriorityClass
from admission.trace_known import Known

PRIORITIES: Mapping[str, PriorityClass] = {
    **{cls.name: cls for cls in DEFAULT_CLASSES},
    "high": INTERACTIVE,
    "normal": STANDARD,
}
"""What may stand under ``priority``: the classes, and the two names that scenarios have."""

MOST_TOKENS = 10_000_000
"""Longer than any context; a larger number is a damaged file."""

MOST_SECONDS = 1_000_000_000
"""About thirty years: arrivals are relative to the first, or at worst Unix times that somebody forgot to shift."""

MOST_TENANT_CHARACTERS = 128

_ARRIVAL, _PROMPT, _OUTPUT, _PRIORITY, _TENANT = "arrival_s", "prompt_tokens", "output_tokens", "priority", "tenant"
_COLUMNS = (_ARRIVAL, _PROMPT, _OUTPUT, _PRIORITY, _TENANT)
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


class TraceError(ValueError):
    """The trace is not usable; the message is one sentence that names line and column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a trace: it arrives at ``arrival_us`` and gives exactly ``output_tokens``.

    ``known``: what a log tells of it beyond that.
    """

    request_id: str
    arrival_us: int
    prompt_tokens: int
    output_tokens: int
    cls: PriorityClass = STANDARD
    tenant: str = ""
    known: Known | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """What a file holds. ``arrivals`` are in the order of the file, all at 0 unless ``has_times``.

    ``notes`` say what a reader should know although nothing is wrong.
    """

    arrivals: tuple[Arrival, ...]
    has_times: bool
    notes: tuple[str, ...] = ()

    def at(self, times_us: Sequence[int]) -> TraceFile:
        """The same requests, arriving at these times instead: one for each, in the order of the file."""
        moved = [replace(arrival, arrival_us=at) for arrival, at in zip(self.arrivals, times_us, strict=True)]
        return replace(self, arrivals=tuple(moved), has_times=True)

    def in_order(self) -> tuple[Arrival, ...]:
        """The requests by arrival; those that arrive together in the order of the file."""
        return tuple(sorted(self.arrivals, key=lambda arrival: arrival.arrival_us))


def parse_trace(text: str) -> TraceFile:
    """Read a trace. Raises ``TraceError``. Requests are named r1, r2, … by their row."""
    lines = _lines(text)
    first = next(lines, None)
    if first is None:
        raise TraceError("empty: it needs a header line and at least one row")
    header = _header(*first)
    arrivals = [_arrival(header, cells, line, f"r{number}") for number, (line, cells) in enumerate(lines, start=1)]
    if not arrivals:
        raise TraceError("only a header line, no rows")
    return TraceFile(
        arrivals=tuple(arrivals), has_times=_ARRIVAL in header, notes=tuple(_notes(text, header, arrivals))
    )


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of all lines that are not blank."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(f"line {reader.line_num}: not valid CSV: {error}") from error
        stripped = [cell.strip() for cell in cells]
        if any(stripped) or len(stripped) > 1:
            yield reader.line_num, stripped


def _header(line: int, cells: list[str]) -> list[str]:
    for name in _COLUMNS:
        if cells.count(name) > 1:
            raise TraceError(f"line {line}: the column {name} is there twice")
    for name in (_PROMPT, _OUTPUT):
        if name not in cells:
            raise TraceError(f"line {line}: the header lacks the column {name}; it has: {', '.join(cells)}")
    return cells


def _arrival(header: list[str], cells: list[str], line: int, request_id: str) -> Arrival:
    if len(cells) != len(header):
        raise TraceError(f"line {line}: {len(cells)} columns where the header has {len(header)}")
    row = dict(zip(header, cells, strict=True))
    return Arrival(
        request_id=request_id,
        arrival_us=_microseconds(row[_ARRIVAL], line) if _ARRIVAL in row else 0,
        prompt_tokens=_tokens(row, _PROMPT, line),
        output_tokens=_tokens(row, _OUTPUT, line),
        cls=_class(row[_PRIORITY], line) if _PRIORITY in row else STANDARD,
        tenant=_tenant(row.get(_TENANT, ""), line),
    )


def _microseconds(cell: str, line: int) -> int:
    if not _NUMBER.fullmatch(cell):
        raise TraceError(f"line {line}: {_ARRIVAL} must be a number of seconds, not {_shown(cell)}")
    seconds = float(cell)
    if not 0 <= seconds <= MOST_SECONDS:
        raise TraceError(
            f"line {line}: {_ARRIVAL} must be between 0 and {MOST_SECONDS}"
            f" (seconds from the first request), not {_shown(cell)}"
        )
    return round(seconds * SECOND_US)


def _tokens(row: Mapping[str, str], name: str, line: int) -> int:
    cell = row[name]
    digits = cell.removeprefix("-")
    if not digits.isascii() or not digits.isdigit():
        raise TraceError(f"line {line}: {name} must be a whole number, not {_shown(cell)}")
    if digits != cell or not digits.strip("0"):
        raise TraceError(f"line {line}: {name} must be at least 1, not {_shown(cell)}")
    if len(digits.lstrip("0")) > len(str(MOST_TOKENS)) or int(digits) > MOST_TOKENS:
        raise TraceError(f"line {line}: {name} must be at most {MOST_TOKENS}, not {_shown(cell)}")
    return int(digits)


def _class(cell: str, line: int) -> PriorityClass:
    found = PRIORITIES.get(cell)
    if found is None:
        raise TraceError(f"line {line}: {_PRIORITY} must be one of {', '.join(PRIORITIES)}, not {_shown(cell)}")
    return found


def _tenant(cell: str, line: int) -> str:
    if len(cell) > MOST_TENANT_CHARACTERS:
        raise TraceError(f"line {line}: {_TENANT} must have at most {MOST_TENANT_CHARACTERS} characters")
    return cell


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:40] + "…")


def _notes(text: str, header: list[str], arrivals: Sequence[Arrival]) -> Iterator[str]:
    ignored = [name or "(no name)" for name in header if name not in _COLUMNS]
    if ignored:
        yield f"ignored columns: {', '.join(ignored)}"
    times = [arrival.arrival_us for arrival in arrivals]
    if times != sorted(times):
        yield "the rows are not in the order of their arrival; they are run in that order"
    if not text.endswith(("\n", "\r")):
        yield "the last line has no end; if the file was cut off, its last number is wrong"
