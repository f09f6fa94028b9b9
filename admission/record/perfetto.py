"""A picture in the Chrome trace format, which Perfetto and chrome://tracing open ("Trace Event Format", Google).

One process for each driver, in it one track for each slot (complete events), counters for the budget, the memory and
the running sequences; one process for the queue, with its length and the rejections. Times are microseconds; an
iteration of a scenario is shown as a millisecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from admission.record.entries import TimeUnit
from admission.record.picture import DriverPicture, Level, Picture

QUEUE_PROCESS = 1
US_PER_ITERATION = 1_000


def trace_events(picture: Picture, names: Mapping[str, str]) -> dict[str, Any]:
    """The document. ``names``: what sequences are called, where that is not their id."""
    scale = US_PER_ITERATION if picture.unit is TimeUnit.ITERATIONS else 1
    events = [*_queue(picture, scale)]
    for number, driver in enumerate(picture.drivers):
        events += _driver(driver, QUEUE_PROCESS + 1 + number, scale, names)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _driver(driver: DriverPicture, process: int, scale: int, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", process, 0, f"driver {driver.driver_id} ({driver.model}, {driver.preset})")
    for slot in range(max([bar.slot + 1 for bar in driver.bars], default=0)):
        yield _name("thread_name", process, slot + 1, f"slot {slot}")
    for bar in driver.bars:
        yield {
            "ph": "X",
            "cat": bar.part.value,
            "name": names.get(bar.sequence_id, bar.sequence_id),
            "pid": process,
            "tid": bar.slot + 1,
            "ts": bar.begins * scale,
            "dur": (bar.ends - bar.begins) * scale,
            "args": {
                "part": bar.part.value,
                "tokens": bar.tokens,
                "iterations": f"{bar.first} to {bar.last}",
                "sequence": bar.sequence_id,
            },
        }
    for mark in driver.preemptions:
        thread = 0 if mark.slot is None else mark.slot + 1
        by = f" by {names.get(mark.by, mark.by)}" if mark.by is not None else ""
        yield _instant(f"{names.get(mark.name, mark.name)} {mark.text}{by}", process, thread, mark.at * scale)
    for level in driver.levels:
        yield from _levels(driver, level, process, scale)


def _levels(driver: DriverPicture, level: Level, process: int, scale: int) -> Iterator[dict[str, Any]]:
    at = level.begins * scale
    yield _counter("tokens", process, at, {"decode": level.decode, "prefill": level.prefill})
    yield _counter("slots in use", process, at, {"slots": level.slots})
    if level.unused_budget is not None:
        yield _counter("unused budget", process, at, {"tokens": level.unused_budget})
    if driver.kv_total is not None:
        yield _counter("KV blocks in use", process, at, {"blocks": level.kv_blocks})


def _queue(picture: Picture, scale: int) -> Iterator[dict[str, Any]]:
    yield _name("process_name", QUEUE_PROCESS, 0, "waiting queue")
    changes: Counter[int] = Counter()
    for wait in picture.waits:
        changes[wait.begins] += 1
        changes[wait.ends] -= 1
    length = 0
    for at in sorted(changes):
        length += changes[at]
        yield _counter("waiting", QUEUE_PROCESS, at * scale, {"requests": length})
    for mark in picture.rejections:
        yield _instant(f"{mark.name} {mark.text}", QUEUE_PROCESS, 0, mark.at * scale)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _counter(name: str, process: int, at: int, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at, "args": values}


def _instant(name: str, process: int, thread: int, at: int) -> dict[str, Any]:
    return {"ph": "i", "s": "t", "name": name, "pid": process, "tid": thread, "ts": at}
