"""How long one step takes with a full batch. Run it: ``python -m tests.bench.scheduler``. Prints, asserts nothing.

256 sequences decode; what waits is in the store, so the scheduler only wants more. ``decode only``: nobody joins or
leaves. ``churn``: outputs are short, so that sequences end, and are replaced, in most steps. ``memory short``: the pool
is too small for all, so that sequences are preempted. Each step takes in the report of the step before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from itertools import count

from admission.events import Claimed, Event, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import preset
from admission.scheduler import Scheduler

SLOTS = 256
STEPS = 2_000


def main() -> None:
    print(f"one step, {SLOTS} slots, preset sluicegate, {STEPS} steps")
    print(f"{'load':>14} {'depth':>5} {'median us':>10} {'p99 us':>8} {'decoding':>9} {'pauses':>7}")
    for depth in (1, 2):
        measure("decode only", depth=depth, outputs=iter(lambda: 10_000, None), kv_blocks=1_000_000)
        measure("churn", depth=depth, outputs=(50 + 37 * n % 300 for n in count()), kv_blocks=1_000_000)
        measure("memory short", depth=depth, outputs=(50 + 37 * n % 300 for n in count()), kv_blocks=2_500)


def measure(name: str, *, depth: int, outputs: Iterator[int], kv_blocks: int) -> None:
    limits = Limits(max_slots=SLOTS, token_budget=2048, prefill_chunk=512, kv_blocks=kv_blocks, max_in_flight=depth)
    scheduler = Scheduler(limits, preset("sluicegate"))
    specs = (_spec(number, output) for number, output in enumerate(outputs))
    paused: dict[str, SequenceSpec] = {}
    known: dict[str, SequenceSpec] = {}
    events: list[Event] = []
    in_flight: list[int] = []
    times: list[int] = []
    decoding = pauses = 0
    gc.disable()
    for now in range(STEPS + SLOTS):
        began = time.perf_counter_ns()
        step = scheduler.step(events, now)
        took = time.perf_counter_ns() - began
        if step.plan is not None:
            in_flight.append(step.plan.step)
            if now >= SLOTS:
                decoding += len(step.plan.decode)
        if now >= SLOTS:
            times.append(took)
        events = [Reported(step=in_flight.pop(0))] if len(in_flight) == depth else []
        for gone in step.paused:
            pauses += 1
            paused[gone.sequence_id] = known[gone.sequence_id]
        room = step.want.kv_tokens
        for _ in range(step.want.slots):
            spec = paused.pop(next(iter(paused))) if paused else next(specs)
            if room is None or room < spec.prompt_tokens + spec.expected_tokens:
                paused[spec.sequence_id] = spec
                break
            room -= spec.prompt_tokens + spec.expected_tokens
            known[spec.sequence_id] = spec
            events.append(Claimed(sequence=spec))
    gc.enable()
    times.sort()
    print(
        f"{name:>14} {depth:>5} {times[len(times) // 2] / 1e3:>10.1f} {times[len(times) * 99 // 100] / 1e3:>8.1f}"
        f" {decoding / STEPS:>9.1f} {pauses:>7}"
    )


def _spec(number: int, output: int) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=f"s{number}",
        class_name="standard",
        rank=1,
        score=number,
        arrival_us=number,
        prompt_tokens=64,
        max_tokens=output,
        expected_tokens=min(output, 60),
    )


if __name__ == "__main__":
    main()
