"""How long a real trace takes to simulate: ``python -m tests.bench.simulate [TRACE.csv]``. Prints, asserts nothing.

Without a file it makes a trace like that of Azure's conversations of 2023 (AzurePublicDataset, CC BY 4.0, cite
Splitwise, ISCA 2024): as many requests, as fast, with lengths of the same means.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from admission.machines import GPU_7B
from admission.presets import preset
from admission.summary import Tally
from admission.trace_csv import Arrival, parse_trace
from admission.trace_run import TraceRun
from gateway.simulate_settings import trace_setup

REQUESTS = 19_366
RATE = 5.5
PROMPT_MEAN = 1_155
OUTPUT_MEAN = 211


def main() -> None:
    if len(sys.argv) > 1:
        arrivals, name = parse_trace(Path(sys.argv[1]).read_text()).in_order(), sys.argv[1]
    else:
        arrivals, name = _made_up(), "a made-up trace"
    print(
        f"{name}, {len(arrivals)} requests, {sum(arrival.output_tokens for arrival in arrivals)} output tokens, gpu-7b"
    )
    print(f"{'preset':>27} {'wall s':>7} {'iterations':>11} {'us each':>8} {'completed':>10}")
    for rule in ("sluicegate", "trtllm-max-utilization", "trtllm-guaranteed-no-evict"):
        setup = trace_setup(preset(rule), GPU_7B, {})
        run = TraceRun(arrivals, setup)
        tally = Tally(max_slots=setup.limits.max_slots, kv_blocks=setup.limits.kv_blocks)
        began = time.perf_counter()
        for row in run.iterations():
            tally.add(row)
        took = time.perf_counter() - began
        summary = tally.summary(run.records.values())
        each_us = 1e6 * took / summary.num_iterations
        print(f"{rule:>27} {took:>7.1f} {summary.num_iterations:>11} {each_us:>8.0f} {summary.num_completed:>10}")


def _made_up() -> tuple[Arrival, ...]:
    chance = random.Random(2023)
    at_s = 0.0
    arrivals = []
    for number in range(1, REQUESTS + 1):
        at_s += chance.expovariate(RATE)
        arrivals.append(
            Arrival(
                request_id=f"r{number}",
                arrival_us=round(at_s * 1_000_000),
                prompt_tokens=min(14_050, 1 + round(chance.expovariate(1 / PROMPT_MEAN))),
                output_tokens=min(1_000, 1 + round(chance.expovariate(1 / OUTPUT_MEAN))),
            )
        )
    return tuple(arrivals)


if __name__ == "__main__":
    main()
