"""What a worker that has served much costs. Run it: ``python -m tests.bench.worker_uptime``. Prints, asserts nothing.

Ten thousand short requests of all kinds (greedy, drawn, scored; preempted, swapped, sharing) through a worker process
with a tiny random model, so that all but the model shows: memory, and processor time per iteration, after each
thousand. Then a thousand with pools of several sizes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from random import Random

from tests.workers.short_requests import ShortRequests
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from tests.workers.worker_process import WorkerProcess, worker_process

POOLS = (40, 400, 4000, 40_000)
BATCH = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder), CONFIGS["llama"])
        flags = {"model": folder, "device": "cpu", "threads": 1, "max-slots": 8, "block-size": 4, "swap-mib": 1}
        print(f"{'requests':>9} {'iterations':>11} {'ms each':>8} {'MiB':>7}")
        with worker_process(flags | {"kv-blocks": POOLS[0]}) as worker:
            end = worker.connect()
            requests = ShortRequests(end, end.drive(), Random(1))
            for done in range(BATCH, options.requests + 1, BATCH):
                report(f"{done:9}", worker, requests)
            end.close()
        print(f"{'blocks':>9}")
        for blocks in POOLS:
            with worker_process(flags | {"kv-blocks": blocks}) as worker:
                end = worker.connect()
                report(f"{blocks:9}", worker, ShortRequests(end, end.drive(), Random(1)))
                end.close()


def report(name: str, worker: WorkerProcess, requests: ShortRequests) -> None:
    before_s = worker.processor_s
    iterations = sum(1 for _ in requests.run(BATCH))
    each_ms = 1000 * (worker.processor_s - before_s) / iterations
    print(f"{name} {iterations:11} {each_ms:8.2f} {worker.resident_bytes / 2**20:7.1f}", flush=True)


if __name__ == "__main__":
    main()
