"""What a long prompt does to streams that decode. Run it: ``python -m tests.bench.worker_interference``.

Eight streams decode; a prompt of 1,800 random tokens arrives. Printed for several limits: the longest gap between two
tokens of a stream from its arrival to its first token (the maximum over all streams, since a percentile hides it), the
median gap before it came, and how long its own first token took. The first line is the default; in the last the prompt
runs in one piece. A worker process over its Unix socket, the real scheduler two plans deep in this process. With
``--processor-time`` the engine runs here, on one thread, and its processor time is the clock: for a machine that does
other work beside. Prints, asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from admission.events import Claimed, Event, Finished, FinishReason, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import preset
from admission.scheduler import Scheduler
from gateway.sequence_records import SequenceRecord, plan_message
from tests.bench.worker import worker_flags
from tests.workers.gateway_end import GatewayEnd
from tests.workers.worker_process import ITERATION_WITHIN_S, worker_process
from workers.engine_settings import DEFAULT_MODEL
from workers.wire import Hello, Job, PlanMessage, ReportMessage, Sampling

STREAMS, STREAM_PROMPT, LONG_PROMPT = 8, 64, 1800
BEFORE = 24
"""Tokens of each stream before the long prompt comes."""

MOST_OUTPUT = 256
LIMITS = ((256, 128), (256, 256), (128, 128), (64, 64), (512, 512), (4096, 4096))
"""(token budget, prefill chunk)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--forward", default="auto")
    parser.add_argument("--quantize", default=None)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each limit, in turns; the median is printed")
    parser.set_defaults(max_model_len=2304)
    options = parser.parse_args()
    found: dict[tuple[int, int], list[Gaps]] = {limits: [] for limits in LIMITS}
    with ends(options) as connect:
        for repeat in range(options.repeats):
            for number, (budget, chunk) in enumerate(LIMITS):
                epoch = repeat * len(LIMITS) + number + 1
                end = connect()
                hello = end.drive(epoch=epoch)
                found[budget, chunk].append(Run(end, hello, epoch=epoch, budget=budget, chunk=chunk).run())
                end.close()
    whole = _median(found[LIMITS[-1]], "longest_ms")
    heads = (("budget", 7), ("chunk", 6), ("longest gap ms", 15), ("of one piece", 13), ("gap before ms", 14))
    print(" ".join(f"{head:>{width}}" for head, width in (*heads, ("first token ms", 15))))
    for (budget, chunk), gaps in found.items():
        longest = _median(gaps, "longest_ms")
        before, first = _median(gaps, "before_ms"), _median(gaps, "first_ms")
        print(f"{budget:7} {chunk:6} {longest:15.0f} {longest / whole:13.2f} {before:14.0f} {first:15.0f}")


class End(Protocol):
    """A gateway's end of a worker, and the clock by which to time it."""

    def drive(self, *, epoch: int) -> Hello: ...

    def send(self, plan: PlanMessage, /) -> None: ...

    def receive(self, kind: type[ReportMessage], /) -> ReportMessage: ...

    def close(self) -> None: ...

    def now_s(self) -> float: ...


@contextmanager
def ends(options: argparse.Namespace) -> Iterator[Callable[[], End]]:
    """Makes ends of one worker, one after the other."""
    if options.processor_time:
        from tests.bench.worker_in_process import EngineEnd, load  # noqa: PLC0415 -- torch, only where it is wanted

        engine = load(options)
        yield lambda: EngineEnd(engine)
    else:
        with worker_process(worker_flags(options)) as worker:
            yield lambda: _SocketEnd(worker.path)


class _SocketEnd(GatewayEnd):
    """Over the worker's socket, by the clock on the wall."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sock.settimeout(ITERATION_WITHIN_S)

    def now_s(self) -> float:
        return time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Milliseconds: see the module."""

    longest_ms: float
    before_ms: float
    first_ms: float


@dataclass(slots=True, kw_only=True)
class Stream:
    """One sequence, and when each of its tokens came."""

    record: SequenceRecord
    came_s: list[float] = field(default_factory=list)

    def gaps_ms(self) -> list[tuple[float, float]]:
        """(when it ended, how long it was) of each gap."""
        return [(late, 1000 * (late - early)) for early, late in zip(self.came_s, self.came_s[1:], strict=False)]


class Run:
    """Eight streams and the long prompt, once."""

    def __init__(self, end: End, hello: Hello, *, epoch: int, budget: int, chunk: int) -> None:
        self._end = end
        self._scheduler = Scheduler(
            Limits(
                max_slots=hello.max_slots,
                token_budget=budget,
                prefill_chunk=chunk,
                kv_blocks=hello.kv_blocks,
                block_size=hello.block_size,
                max_in_flight=2,
            ),
            preset("sluicegate"),
        )
        self._epoch = epoch
        random = Random(2)
        lengths = {f"stream-{number}": STREAM_PROMPT for number in range(STREAMS)} | {"long": LONG_PROMPT}
        self._streams = {
            name: Stream(record=SequenceRecord.of(_job(name, length, hello.card.vocab_size, random)))
            for name, length in lengths.items()
        }
        self._slots: dict[int, Stream] = {}

    def run(self) -> Gaps:
        *streams, long = self._streams.values()
        self._step([Claimed(sequence=_spec(stream.record.job)) for stream in streams])
        while min(len(stream.came_s) for stream in streams) < BEFORE:
            self._take_report()
        arrived = self._end.now_s()
        self._step([Claimed(sequence=_spec(long.record.job))])
        while not long.came_s:
            self._take_report()
        first = long.came_s[0]
        gaps = [gap for stream in streams for gap in stream.gaps_ms()]
        return Gaps(
            longest_ms=max(length for late, length in gaps if arrived < late <= first),
            before_ms=statistics.median(length for late, length in gaps if late <= arrived),
            first_ms=1000 * (first - arrived),
        )

    def _step(self, events: Sequence[Event]) -> None:
        while True:
            step = self._scheduler.step(events, time.monotonic_ns() // 1000)
            if step.plan is None:
                return
            for start in step.plan.starts:
                self._slots[start.slot] = self._streams[start.sequence_id]
            records = {name: stream.record for name, stream in self._streams.items()}
            self._end.send(plan_message(step.plan, epoch=self._epoch, records=records))
            events = ()

    def _take_report(self) -> None:
        report = self._end.receive(ReportMessage)
        now = self._end.now_s()
        for slot, token in report.tokens:
            self._slots[slot].record.output.append(token)
            self._slots[slot].came_s.append(now)
        finished = tuple(Finished(slot=slot, reason=FinishReason(reason)) for slot, reason in report.finished)
        self._step([Reported(step=report.step, finished=finished, live_blocks=report.live_blocks)])


def _job(name: str, length: int, vocab_size: int, random: Random) -> Job:
    return Job(
        sequence_id=name,
        origin="",
        class_name="standard",
        rank=1,
        prompt_ids=tuple(random.randrange(vocab_size) for _ in range(length)),
        emitted_ids=(),
        max_tokens=MOST_OUTPUT,
        expected_tokens=MOST_OUTPUT,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
        deadline_us=None,
    )


def _spec(job: Job) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=job.sequence_id,
        class_name=job.class_name,
        rank=job.rank,
        score=0,
        arrival_us=0,
        prompt_tokens=len(job.prompt_ids),
        max_tokens=job.max_tokens,
        expected_tokens=job.expected_tokens,
    )


def _median(gaps: Sequence[Gaps], name: str) -> float:
    return statistics.median(getattr(one, name) for one in gaps)


if __name__ == "__main__":
    main()
