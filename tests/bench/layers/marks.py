"""What a process's stopwatches showed, iteration by iteration: kept in memory, written as JSON at its end.

Times are seconds of ``time.perf_counter``, which on Linux is one clock for all processes of a machine.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

FOLDER = "LAYERS_FOLDER"
"""The variable by which a process knows where to write."""


class Kind(StrEnum):
    """What happened at a mark."""

    REPORT = "report"
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """At ``at_s``: seconds by stopwatch and layer, and processor time of the whole process, since the start.

    A worker's mark also says how many sequences decoded in the iteration, and how many tokens of prompts it computed.
    """

    at_s: float
    kind: Kind
    spent: dict[str, dict[str, float]]
    cpu_s: float
    decodes: int = 0
    prompt_tokens: int = 0


class Marks:
    """Those of this process."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def add(self, spent: dict[str, dict[str, float]], *, at_s: float, kind: Kind, **work: int) -> None:
        mark = Mark(at_s=at_s, kind=kind, spent=spent, cpu_s=time.process_time(), **work)
        self._marks.append(mark)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(mark) for mark in self._marks]))


def read(path: Path) -> list[Mark]:
    """What a process wrote, in order."""
    return [Mark(**mark | {"kind": Kind(mark["kind"])}) for mark in json.loads(path.read_text())]


def between(first: Mark, last: Mark, stopwatch: str) -> dict[str, float]:
    """Seconds by layer from one mark to another."""
    before, after = first.spent[stopwatch], last.spent[stopwatch]
    return {layer: spent - before.get(layer, 0.0) for layer, spent in after.items()}
