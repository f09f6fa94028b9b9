"""How long a worker computes and how long it waits. Run it: ``python -m tests.bench.worker``. Prints, asserts nothing.

*burst*: 64 requests at once, prompts of 128 random tokens, output lengths exponential with mean 64 and at most 256, eos
ignored, against a worker process over its Unix socket, planned by the real scheduler two plans deep in this process.
Busy and idle times are those of the worker's own reports.

*steps*: prefills of several lengths and decodes of several batches with 200 tokens of context, in this process, beside
transformers' own forward: its usual attention, its own cache, all sequences of one length, which a server's never are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from admission.events import Claimed, Finished, FinishReason, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import preset
from admission.scheduler import Scheduler
from gateway.sequence_records import SequenceRecord, plan_message
from tests.workers.gateway_end import GatewayEnd
from tests.workers.worker_process import worker_process
from workers.engine_settings import DEFAULT_MODEL
from workers.wire import Hello, Job, ReportMessage, Sampling

if TYPE_CHECKING:
    from tests.bench.worker_steps import Steps

REQUESTS, PROMPT, MEAN_OUTPUT, MOST_OUTPUT = 64, 128, 64, 256
DECODES, CONTEXT = (1, 8, 16, 32), 200
PREFILLS = (128, 512, 2048)
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--forward", default="auto")
    parser.add_argument("--quantize", default=None)
    parser.add_argument(
        "--clock",
        default="wall",
        choices=("wall", "processor"),
        help="for steps; processor: one thread's own time, which on a busy machine says more",
    )
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--budget", type=int, default=256, help="tokens per iteration")
    parser.set_defaults(max_model_len=1024)
    parser.add_argument("only", nargs="?", choices=("burst", "steps"))
    options = parser.parse_args()
    if options.only != "steps":
        burst(options)
    if options.only != "burst":
        steps(options)


# --- burst ------------------------------------------------------------------------------------------------------------


def burst(options: argparse.Namespace) -> None:
    with worker_process(worker_flags(options)) as worker:
        end = worker.connect()
        hello = end.drive()
        began = time.perf_counter()
        reports = drive(end, hello, options.budget)
        took_s = time.perf_counter() - began
        end.close()
    busy_s, idle_s = (sum(times) / 1e6 for times in zip(*((r.busy_us, r.idle_us) for r in reports[1:]), strict=True))
    idle = sorted(report.idle_us for report in reports[1:])
    tokens = sum(len(report.tokens) for report in reports)
    print(f"burst: {REQUESTS} requests, {len(reports)} iterations, {tokens} tokens in {took_s:.1f} s")
    print(f"  busy {busy_s:.2f} s, idle {idle_s:.3f} s: {100 * idle_s / (busy_s + idle_s):.2f} % of the time")
    print(
        f"  an iteration: {1000 * statistics.median(r.busy_us for r in reports) / 1e6:.1f} ms in the median;"
        f" idle before it: {idle[len(idle) // 2]} us in the median, {idle[-len(idle) // 100]} us at p99"
    )


def worker_flags(options: argparse.Namespace) -> dict[str, object]:
    flags = {"model": options.model, "dtype": options.dtype, "device": options.device, "max-slots": options.slots}
    flags |= {"max-model-len": options.max_model_len, "forward": options.forward}
    if options.threads is not None:
        flags["threads"] = options.threads
    if options.quantize is not None:
        flags["quantize"] = options.quantize
    if options.deterministic:
        flags["deterministic"] = True
    return flags


def drive(end: GatewayEnd, hello: Hello, budget: int) -> list[ReportMessage]:
    """Claim everything at once and run it to its end; every report."""
    limits = Limits(
        max_slots=hello.max_slots,
        token_budget=budget,
        prefill_chunk=budget,
        kv_blocks=hello.kv_blocks,
        block_size=hello.block_size,
        max_in_flight=2,
    )
    scheduler = Scheduler(limits, preset("sluicegate"))
    records = {job.sequence_id: SequenceRecord.of(job) for job in make_jobs(hello.card.vocab_size)}
    slots: dict[int, SequenceRecord] = {}
    reports: list[ReportMessage] = []
    waiting = deque(Claimed(sequence=_spec(record.job)) for record in records.values())
    events: list[Claimed | Reported] = []
    left = len(records)
    while left:
        step = scheduler.step(events, time.monotonic_ns() // 1000)
        left -= len(step.ended)
        while step.plan is not None:
            slots.update({start.slot: records[start.sequence_id] for start in step.plan.starts})
            end.send(plan_message(step.plan, epoch=1, records=records))
            step = scheduler.step((), time.monotonic_ns() // 1000)
        events = [waiting.popleft() for _ in range(min(step.want.slots, len(waiting)))]
        if not events and left:
            reports.append(end.receive(ReportMessage))
            events = [_take(reports[-1], slots)]
    return reports


def _take(report: ReportMessage, slots: dict[int, SequenceRecord]) -> Reported:
    for slot, token in report.tokens:
        slots[slot].output.append(token)
    finished = tuple(Finished(slot=slot, reason=FinishReason(reason)) for slot, reason in report.finished)
    return Reported(step=report.step, finished=finished, live_blocks=report.live_blocks)


def make_jobs(vocab_size: int) -> list[Job]:
    random = Random(1)
    return [
        Job(
            sequence_id=f"request-{number}",
            origin="",
            class_name="standard",
            rank=1,
            prompt_ids=tuple(random.randrange(vocab_size) for _ in range(PROMPT)),
            emitted_ids=(),
            max_tokens=max(1, min(MOST_OUTPUT, round(random.expovariate(1 / MEAN_OUTPUT)))),
            expected_tokens=MEAN_OUTPUT,
            sampling=Sampling(temperature=0.0, ignore_eos=True),
            deadline_us=None,
        )
        for number in range(REQUESTS)
    ]


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


# --- steps ------------------------------------------------------------------------------------------------------------


def steps(options: argparse.Namespace) -> None:
    """Torch is imported here: the burst is driven by a process without it, as in service."""
    from tests.bench.dense import Dense  # noqa: PLC0415 -- see above
    from tests.bench.worker_steps import Steps  # noqa: PLC0415 -- see above

    clock, threads = time.perf_counter, options.threads
    if options.clock == "processor":
        clock, threads = time.process_time, 1
    ours = Steps(
        model=options.model,
        longest=max(PREFILLS),
        dtype=options.dtype,
        device=options.device,
        threads=threads,
        deterministic=options.deterministic,
        forward=options.forward,
        quantize=options.quantize,
    )
    theirs = Dense(model=options.model, dtype=ours.dtype, threads=threads, clock=clock)
    print(f"{'step, in ms':>22} {'ours':>8} {'transformers':>13} {'ratio':>6}  where ours goes")
    for length in PREFILLS:
        mine, parts = _measure(ours, clock, lambda length=length: ours.prefill(length), repeats=3)
        _print(f"prefill {length}", mine, theirs.prefill_ms(length), parts)
    for count in DECODES:
        ours.start(count, CONTEXT)
        mine, parts = _measure(ours, clock, lambda count=count: ours.decode(count), repeats=REPEATS)
        _print(f"decode {count} at {CONTEXT}", mine, theirs.decode_ms(count, context=CONTEXT), parts)


def _measure(
    ours: Steps, clock: Callable[[], float], step: Callable[[], None], *, repeats: int
) -> tuple[float, dict[str, float]]:
    """The median of a step in milliseconds; and, of as many more under a stopwatch, the mean of each layer."""
    step()
    times = []
    for _ in range(repeats):
        began = clock()
        step()
        times.append(clock() - began)
    with ours.parts(clock) as spent:
        before = spent()
        for _ in range(repeats):
            step()
        after = spent()
    parts = {layer: 1000 * (seconds - before.get(layer, 0.0)) / repeats for layer, seconds in after.items()}
    return 1000 * statistics.median(times), parts


def _print(name: str, ours: float, theirs: float, parts: dict[str, float]) -> None:
    where = ", ".join(f"{part} {spent:.1f}" for part, spent in sorted(parts.items(), key=lambda part: -part[1]))
    print(f"{name:>22} {ours:8.1f} {theirs:13.1f} {ours / theirs:6.2f}  {where}", flush=True)


if __name__ == "__main__":
    main()
