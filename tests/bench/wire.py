"""How long the codec takes for one iteration of a large batch. Prints figures, asserts nothing about time.

Run: ``python -m tests.bench.wire``
"""

from __future__ import annotations

import dataclasses
import timeit

from workers.wire import (
    BlockGrowth,
    Job,
    Message,
    NewSequence,
    PlanMessage,
    PrefillSpan,
    ReportMessage,
    Sampling,
    decode,
    encode,
)

SLOTS = 256
PROMPT = tuple(range(100, 100 + 8192))

DECODE = PlanMessage(step=1, epoch=1, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=tuple(range(SLOTS)))
GROWING = dataclasses.replace(
    DECODE, grows=tuple(BlockGrowth(slot=slot, blocks=(slot,)) for slot in range(SLOTS // 16))
)
STARTING = dataclasses.replace(
    GROWING,
    starts=(
        NewSequence(
            slot=0,
            sequence_id="0192f0c1-request/0",
            tokens=PROMPT,
            emitted=0,
            computed=0,
            max_tokens=256,
            sampling=Sampling(),
            blocks=tuple(range(512)),
        ),
    ),
    prefill=(PrefillSpan(slot=0, start=0, length=256, emits=False),),
)
REPORT = ReportMessage(
    step=1,
    epoch=1,
    tokens=tuple((slot, 40_000 + slot) for slot in range(SLOTS)),
    finished=((1, "stop"), (2, "length")),
    live_blocks=4000,
    busy_us=12_000,
    idle_us=3,
)
JOB = Job(
    sequence_id="0192f0c1-request/0",
    origin="tcp:10.0.0.1:9080",
    class_name="standard",
    rank=1,
    prompt_ids=PROMPT,
    emitted_ids=(),
    max_tokens=256,
    expected_tokens=100,
    sampling=Sampling(),
    deadline_us=None,
)

CASES: tuple[tuple[str, Message], ...] = (
    (f"plan: {SLOTS} decodes", DECODE),
    (f"plan: {SLOTS} decodes, {SLOTS // 16} blocks", GROWING),
    ("the same, and one prompt of 8192 tokens", STARTING),
    (f"report: {SLOTS} tokens", REPORT),
    ("queue entry: prompt of 8192 tokens", JOB),
)


def microseconds(statement: object, *, repeats: int = 5, number: int = 500) -> float:
    """The best of several runs: the machine's other work only ever adds."""
    return min(timeit.repeat(statement, repeat=repeats, number=number)) / number * 1e6  # type: ignore[arg-type]


def main() -> None:
    print(f"{'message':45} {'bytes':>8} {'encode us':>10} {'decode us':>10}")
    for name, message in CASES:
        frame = encode(message)
        encoding = microseconds(lambda message=message: encode(message))
        decoding = microseconds(lambda frame=frame: decode(frame))
        print(f"{name:45} {len(frame):8} {encoding:10.1f} {decoding:10.1f}")


if __name__ == "__main__":
    main()
