"""What recording costs. Run it: ``python -m tests.bench.recording``. Prints, asserts nothing about time.

*Serving*: two gateways, one with ``--record``, each over a scripted worker of its own, serve the same load in turns. As
fast as they can is the worst case, as then every microsecond of CPU is throughput; with iterations of 20 ms, which is a
fast model, what counts is CPU per token. Each pair of rounds gives a ratio; printed are medians, and how far apart the
middle half of the ratios lies: on a busy machine far more than what is looked for. *Thread* is what the writing thread
took of the CPU of the recording gateway (what side threads take without recording left out), which other processes blur
less.

*One step*: what the event loop does to record it (an object in a list), what the writing thread does (bytes), and how
many bytes. *Rotation*: how long the event loop stands still while it writes down the state of a full scheduler.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from admission.events import Claimed, Event, Reported, SequenceSpec
from admission.limits import Limits
from admission.presets import preset
from admission.record.entries import Stepped
from admission.record.framing import FrameWriter
from admission.record.snapshot import freeze, thaw
from admission.scheduler import Scheduler
from tests.bench.serving.client import Crowd
from tests.bench.serving.servers import Serving, cpu_s, side_threads_s, start_gateway

ROUNDS = 9
STREAMS = 64
TOKENS = 256
ROUND_S = 2.0
ITERATIONS_US = (0, 20_000)

SEQUENCES, BLOCKS, PROMPT_BLOCKS = 256, 20_000, 64
STEPS = 500


async def main() -> None:
    one_step()
    rotation()
    print(f"\nserving {STREAMS} streams of {TOKENS} tokens, {ROUNDS} pairs of {ROUND_S:.0f} s")
    speed, cpu = f"{'tokens/s':>10} {'recorded':>10}", f"{'CPU us/token':>14} {'recorded':>10}"
    print(f"{'iteration ms':>12} {speed} {'ratio':>15} {cpu} {'ratio':>15} {'thread':>8}")
    for iteration_us in ITERATIONS_US:
        with tempfile.TemporaryDirectory() as name:
            await serving(Path(name), iteration_us)


async def serving(folder: Path, iteration_us: int) -> None:
    plain, recorded = folder / "a", folder / "b"
    plain.mkdir()
    recorded.mkdir()
    flags = ("--record", str(recorded / "logs"))
    async with (
        start_gateway(plain, loop="uvloop", iteration_us=iteration_us) as without,
        start_gateway(recorded, loop="uvloop", iteration_us=iteration_us, flags=flags) as with_record,
    ):
        pairs = [await _pair(without, with_record, number) for number in range(ROUNDS + 1)][1:]  # the first warms up
    plain_rounds, rounds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    speeds, recorded_speeds = [each.tokens_per_s for each in plain_rounds], [each.tokens_per_s for each in rounds]
    cpu, recorded_cpu = [each.us_per_token for each in plain_rounds], [each.us_per_token for each in rounds]
    print(
        f"{iteration_us / 1_000:>12.0f} {median(speeds):>10.0f} {median(recorded_speeds):>10.0f}"
        f" {_ratio(recorded_speeds, speeds):>15} {median(cpu):>14.2f} {median(recorded_cpu):>10.2f}"
        f" {_ratio(recorded_cpu, cpu):>15} {_thread(rounds) - _thread(plain_rounds):>8.2%}",
        flush=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """``thread``: what threads other than the event loop's took of the CPU."""

    tokens_per_s: float
    us_per_token: float
    thread: float


def _thread(rounds: Sequence[_Round]) -> float:
    return median([each.thread for each in rounds])


async def _pair(without: Serving, with_record: Serving, number: int) -> tuple[_Round, _Round]:
    """Without and with; who goes first alternates."""
    if number % 2:
        second = await _round(with_record)
        return await _round(without), second
    return await _round(without), await _round(with_record)


async def _round(serving: Serving) -> _Round:
    crowd = await Crowd.start()
    try:
        before, side_before = cpu_s(serving.gateway_pid), side_threads_s(serving.gateway_pid)
        requests, took_s = await crowd.churn(serving.port, streams=STREAMS, tokens=TOKENS, seconds=ROUND_S)
        cpu, side = cpu_s(serving.gateway_pid) - before, side_threads_s(serving.gateway_pid) - side_before
    finally:
        await crowd.stop()
    tokens = TOKENS * requests
    return _Round(tokens_per_s=tokens / took_s, us_per_token=1e6 * cpu / tokens, thread=side / cpu)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    first, middle, third = quantiles([one / other for one, other in zip(ours, theirs, strict=True)])
    return f"{middle:.3f} +-{(third - first) / 2:.3f}"


def one_step() -> None:
    """A step in which all sequences decode, with the report of the one before."""
    scheduler = full_scheduler()
    frames = FrameWriter()
    steps: list[int] = []
    kept: list[int] = []
    written: list[int] = []
    num_bytes = 0
    events: Sequence[Event] = ()
    gc.disable()
    for now in range(STEPS):
        began = time.perf_counter_ns()
        step = scheduler.step(events, now)
        stepped_at = time.perf_counter_ns()
        entry = Stepped(now_us=now, events=tuple(events), step=step)
        kept_at = time.perf_counter_ns()
        frame = frames.frame(entry)
        written.append(time.perf_counter_ns() - kept_at)
        steps.append(stepped_at - began)
        kept.append(kept_at - stepped_at)
        num_bytes += len(frame)
        assert step.plan is not None
        events = (Reported(step=step.plan.step, live_blocks=scheduler.kv_blocks_in_use),)
    gc.enable()
    print(f"one step of {SEQUENCES} sequences that decode: {median(steps) / 1_000:.1f} us")
    print(f"  to keep it   {median(kept) / 1_000:6.1f} us in the event loop")
    print(f"  to write it  {median(written) / 1_000:6.1f} us in the thread, {num_bytes / STEPS:.0f} bytes")


def rotation() -> None:
    """The state of a scheduler with every slot and block in use."""
    scheduler = full_scheduler()
    state = freeze(scheduler)
    print(f"\nstate of {SEQUENCES} sequences and {BLOCKS:,} blocks: {len(state):,} bytes")
    print(f"  to write it down  {_ms(lambda: freeze(scheduler)):6.1f} ms in the event loop, once in a segment")
    print(f"  to read it        {_ms(lambda: thaw(state)):6.1f} ms")


def _ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(9):
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    return median(times) / 1e6


def full_scheduler() -> Scheduler:
    """Every sequence has computed its prompt, whose blocks are hashed, and decodes."""
    limits = Limits(max_slots=SEQUENCES, token_budget=65_536, prefill_chunk=4_096, kv_blocks=BLOCKS, max_in_flight=1)
    scheduler = Scheduler(limits, preset("sluicegate"))
    events: list[Event] = [Claimed(sequence=_spec(number)) for number in range(SEQUENCES)]
    while True:
        step = scheduler.step(events, 0)
        assert step.plan is not None
        events = [Reported(step=step.plan.step)]
        if len(step.plan.decode) == SEQUENCES:
            scheduler.step(events, 0)
            events = [Reported(step=step.plan.step + 1)]
            scheduler.take(events[0], 0)
            return scheduler


def _spec(number: int) -> SequenceSpec:
    prompt = 16 * PROMPT_BLOCKS
    return SequenceSpec(
        sequence_id=f"{number:032x}-0",
        class_name="standard",
        rank=1,
        score=number,
        arrival_us=0,
        prompt_tokens=prompt,
        max_tokens=10_000,
        expected_tokens=64,
        deadline_us=None,
        block_hashes=tuple([f"{number}:{block}".encode().ljust(16) for block in range(PROMPT_BLOCKS)]),
    )


if __name__ == "__main__":
    asyncio.run(main())
