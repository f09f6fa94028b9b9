"""What a simulation comes down to: latencies per class, work per iteration, and what was refused, preempted, unused.

Percentiles are nearest rank, of all values. A *gap* is the time between two output tokens of one sequence; those of all
sequences of a class are taken together. A *slot-round* is one slot in one iteration: useful when its sequence advances
(a token or a chunk), wasted when it is empty or its sequence does not. Occupancies are weighted with time, over the
iterations alone: a machine that idles has no batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from admission.histogram import Histogram
from admission.trace import Result
from admission.trace_rows import Iteration, Rejection, RequestRecord


class Spread(NamedTuple):
    """Percentiles and the greatest of a set of values."""

    p50: int
    p90: int
    p99: int
    greatest: int

    @classmethod
    def of(cls, histogram: Histogram) -> Spread | None:
        """None when there are no values."""
        return cls(*histogram.percentiles(50, 90, 99, 100)) if histogram.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One kind of latency, in iterations and in microseconds; both None when nothing of its kind happened."""

    iterations: Spread | None
    us: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """One class. ``first_token`` and ``whole`` count from the arrival, the iteration that gave the token included."""

    name: str
    num_requests: int
    num_completed: int
    num_rejected: int
    first_token: Latency
    gap: Latency
    whole: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole run. ``busy_us``: time of all iterations; ``span_us``: from the first to the last; ``end_us``: its end.

    ``unused_budget`` is in tokens, None under a preset without a token budget. Occupancies are shares of 1, None
    without iterations or, for KV memory, when it is not limited. ``num_held_back`` counts sequences, in iterations in
    which prefill took budget, that were ready to decode and did not.
    """

    classes: tuple[ClassSummary, ...]
    rejections: Mapping[Rejection, int]
    slot_preemptions: int
    kv_preemptions: int
    num_iterations: int
    busy_us: int
    end_us: int
    span_us: int
    decode: Spread | None
    prefill: Spread | None
    decode_tokens: int
    prefill_tokens: int
    output_tokens: int
    peak_waiting: int
    peak_slots: int
    peak_kv_blocks: int
    slot_rounds: int
    useful_rounds: int
    unused_budget: int | None
    slot_occupancy: float | None
    kv_occupancy: float | None
    num_held_back: int

    @property
    def wasted_rounds(self) -> int:
        return self.slot_rounds - self.useful_rounds

    @property
    def num_requests(self) -> int:
        return sum(entry.num_requests for entry in self.classes)

    @property
    def num_completed(self) -> int:
        return sum(entry.num_completed for entry in self.classes)

    @property
    def num_rejected(self) -> int:
        return sum(entry.num_rejected for entry in self.classes)


@dataclass(slots=True, kw_only=True)
class _Measures:
    """One kind of latency while it is counted."""

    iterations: Histogram = field(default_factory=Histogram)
    us: Histogram = field(default_factory=Histogram)

    def add(self, iterations: int, us: int, times: int = 1) -> None:
        self.iterations.add(iterations, times)
        self.us.add(us, times)

    def latency(self) -> Latency:
        return Latency(iterations=Spread.of(self.iterations), us=Spread.of(self.us))


class Tally:
    """Adds up the rows of a run as they come. ``max_slots`` and ``kv_blocks`` (None: not limited) are its limits."""

    def __init__(self, *, max_slots: int, kv_blocks: int | None) -> None:
        self._max_slots = max_slots
        self._kv_blocks = kv_blocks
        self._gaps: dict[str, _Measures] = {}
        self._decode = Histogram()
        self._prefill = Histogram()
        self._busy_us = self._end_us = 0
        self._start_us: int | None = None
        self._output_tokens = self._useful_rounds = self._num_held_back = 0
        self._peak_waiting = self._peak_slots = self._peak_kv_blocks = 0
        self._slot_us = self._kv_block_us = 0
        self._unused_budget: int | None = None

    def add(self, row: Iteration) -> None:
        self._busy_us += row.took_us
        if self._start_us is None:
            self._start_us = row.at_us
        self._end_us = row.at_us + row.took_us
        self._decode.add(row.num_decode)
        self._prefill.add(row.prefill_tokens)
        self._output_tokens += row.num_decode + len(row.prefill_emitted)
        self._useful_rounds += row.num_decode + len(row.prefill)
        self._num_held_back += row.num_held_back if row.prefill else 0
        self._peak_waiting = max(self._peak_waiting, row.peak_waiting)
        self._peak_slots = max(self._peak_slots, row.slots)
        self._slot_us += row.slots * row.took_us
        if row.kv_blocks is not None:
            self._peak_kv_blocks = max(self._peak_kv_blocks, row.kv_blocks)
            self._kv_block_us += row.kv_blocks * row.took_us
        if row.unused_budget is not None:
            self._unused_budget = (self._unused_budget or 0) + row.unused_budget
        for class_name, iterations, us, times in row.gaps:
            measures = self._gaps.get(class_name)
            if measures is None:
                measures = self._gaps[class_name] = _Measures()
            measures.add(iterations, us, times)

    def summary(self, records: Iterable[RequestRecord]) -> Summary:
        """What it comes to, given how every request fared."""
        by_rank: dict[tuple[int, str], list[RequestRecord]] = {}
        rejections: Counter[Rejection] = Counter()
        slot_preemptions = kv_preemptions = 0
        for record in records:
            by_rank.setdefault((record.arrival.cls.rank, record.arrival.cls.name), []).append(record)
            slot_preemptions += record.slot_preemptions
            kv_preemptions += record.kv_preemptions
            if record.rejection is not None:
                rejections[record.rejection] += 1
        return Summary(
            classes=tuple([self._class(name, members) for (_, name), members in sorted(by_rank.items())]),
            rejections={reason: rejections[reason] for reason in Rejection if rejections[reason]},
            slot_preemptions=slot_preemptions,
            kv_preemptions=kv_preemptions,
            num_iterations=self._decode.count,
            busy_us=self._busy_us,
            end_us=self._end_us,
            span_us=self._end_us - (self._start_us or 0),
            decode=Spread.of(self._decode),
            prefill=Spread.of(self._prefill),
            decode_tokens=self._decode.total,
            prefill_tokens=self._prefill.total,
            output_tokens=self._output_tokens,
            peak_waiting=self._peak_waiting,
            peak_slots=self._peak_slots,
            peak_kv_blocks=self._peak_kv_blocks,
            slot_rounds=self._decode.count * self._max_slots,
            useful_rounds=self._useful_rounds,
            unused_budget=self._unused_budget,
            slot_occupancy=_share(self._slot_us, self._busy_us * self._max_slots),
            kv_occupancy=_share(self._kv_block_us, self._busy_us * (self._kv_blocks or 0)),
            num_held_back=self._num_held_back,
        )

    def _class(self, name: str, records: list[RequestRecord]) -> ClassSummary:
        first_token, whole = _Measures(), _Measures()
        for record in records:
            arrived_us = record.arrival.arrival_us
            if record.first_output is not None and record.first_output_us is not None:
                first_token.add(record.first_output - record.arrived_in + 1, record.first_output_us - arrived_us)
            if record.completed is not None and record.completed_us is not None:
                whole.add(record.completed - record.arrived_in + 1, record.completed_us - arrived_us)
        return ClassSummary(
            name=name,
            num_requests=len(records),
            num_completed=sum(record.result is Result.COMPLETED for record in records),
            num_rejected=sum(record.result is Result.REJECTED for record in records),
            first_token=first_token.latency(),
            gap=self._gaps.get(name, _Measures()).latency(),
            whole=whole.latency(),
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
