"""The trace is one that Perfetto takes: held against the rules of the "Trace Event Format" document."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import orjson
import pytest

from admission.queue import Offered
from admission.record.clocks import Clocks
from admission.record.perfetto import trace_events
from admission.record.picture import Picture, picture
from admission.record.tell import tell
from tests.admission.record.doors import Door
from tests.admission.record.golden import golden_logs
from tests.admission.record.recorded import busy_recording

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "M": {"name", "ph", "pid", "tid", "args"},
}
"""Fields of the phases that we write: complete, counter, instant and metadata events."""


def check_trace(document: dict[str, Any]) -> None:
    """Raise ``AssertionError`` where the document is not in the format, or would not be drawn as it is meant."""
    assert set(document) <= {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in {"ms", "ns"}
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    counters: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    named: set[tuple[str, int, int]] = set()
    for event in document["traceEvents"]:
        phase = event["ph"]
        assert REQUIRED[phase] <= set(event), event
        assert all(
            isinstance(event[field], int) and event[field] >= 0
            for field in ("pid", "tid", "ts", "dur")
            if field in event
        )
        match phase:
            case "X":
                tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            case "C":
                assert event["args"]
                assert all(isinstance(value, int) and value >= 0 for value in event["args"].values()), event
                counters[event["pid"], event["name"]].append(event["ts"])
            case "i":
                assert event["s"] in {"g", "p", "t"}
            case "M":
                assert event["name"] in {"process_name", "thread_name"}
                assert isinstance(event["args"]["name"], str)
                named.add((event["name"], event["pid"], event["tid"]))
    for (process, thread), spans in tracks.items():
        assert ("thread_name", process, thread) in named
        assert ("process_name", process, 0) in named
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    for times in counters.values():
        assert times == sorted(times)


def busy_picture() -> Picture:
    recording = busy_recording()
    recording.end()
    log = [entry for segment in recording.segments for entry in segment]
    door = Door()
    door.offer("a", 10)
    door.offer("b", 12, Offered.QUEUE_FULL)
    door.give("a", now=20)
    return picture([tell(log)], [door.entries], Clocks([log, door.entries]))


@pytest.mark.parametrize(
    "drawn", [golden_logs().picture(), golden_logs("sustained_overload").picture(), busy_picture()]
)
def test_the_document_is_in_the_format(drawn: Picture) -> None:
    """A viewer drops what it does not understand, silently."""
    check_trace(orjson.loads(orjson.dumps(trace_events(drawn, {}))))


def test_the_baseline_is_in_it() -> None:
    """Names as clients know them, an iteration as a millisecond, counters from limit to limit."""
    events = trace_events(golden_logs().picture(), {"A": "request A"})["traceEvents"]
    first = next(event for event in events if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"], first["args"]["tokens"]) == ("request A", 0, 1_000, 3)
    instants = [event["name"] for event in events if event["ph"] == "i"]
    assert instants == ["F refused: queue_full", "request A preempted for its slot by C"]
    waiting = [(event["ts"], event["args"]["requests"]) for event in events if event["name"] == "waiting"]
    assert waiting == [(1_000, 1), (2_000, 2), (3_000, 1), (5_000, 0)]


@pytest.mark.parametrize(
    "spoil",
    [
        {"ph": "X", "name": "a", "cat": "c", "ts": 5, "dur": 9, "pid": 1, "tid": 0},
        {"ph": "C", "name": "waiting", "ts": 0, "pid": 1, "tid": 0, "args": {}},
        {"ph": "i", "name": "a", "ts": -1, "pid": 1, "tid": 0, "s": "t"},
    ],
)
def test_the_check_can_fail(spoil: dict[str, Any]) -> None:
    """Else it would prove nothing."""
    document = trace_events(golden_logs().picture(), {})
    document["traceEvents"].append(spoil)
    with pytest.raises(AssertionError):
        check_trace(document)
