"""What overload costs those who are served, and those who are not. Prints figures, asserts nothing about time.

Run: ``python -m tests.bench.overload [overload] [rejection] [model]``, all three when none is named.

* ``overload``: the scripted worker at half of and at three times what it can serve, 20 % interactive and 80 % batch.
* ``rejection``: the scripted worker at ten times what it can serve: how long a 429 takes beside ``/livez`` in the same
  run, from the same clients, and how much is served beside a run without any rejection.
* ``model``: as ``overload``, with the real model.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.system.cluster import Cluster, script, start_cluster
from tests.system.load import Shot, fire
from tests.system.overload import CAPACITY_PER_S, CLASSES, Service, offer, overload_cluster, percentile

SECONDS = 30.0

# For rejections: few slots and slow iterations, so that ten times the capacity is still what two cores can send.
SLOTS, ITERATION_MS, TOKENS, QUEUE = 4, 50, 5, 64
SLOW_WORKER = script(output={"kind": "echo"}, delays={"base_us": 1000 * ITERATION_MS}, slots=SLOTS, blocks=4096)
SLOW_PER_S = SLOTS / ((TOKENS + 1) * ITERATION_MS / 1000)  # as in ``tests.system.overload``
LIVEZ_PER_S = 20.0

MODEL = "smollm2-135m-instruct"
MODEL_SLOTS = 8
MODEL_TOKENS = 16
MODEL_START_S = 300.0


async def overload(folder: Path) -> None:
    async with overload_cluster(folder) as cluster:
        for name, load in (("half load", 0.5), ("three times", 3.0)):
            print_service(name, await offer(cluster, per_s=load * CAPACITY_PER_S, seconds=SECONDS, seed=1))


async def rejection(folder: Path) -> None:
    async with start_cluster(folder, "--fake-worker", SLOW_WORKER, "--queue-requests", str(QUEUE)) as cluster:
        calm = Service(outcomes=tuple(await fire(_as_many_as_fit(cluster), processes=2)))
        outcomes = await fire(_ten_times(cluster), processes=2)
    stormy = Service(outcomes=tuple(outcome for outcome in outcomes if outcome.shot.class_name))
    refused = sorted(outcome.end_s for outcome in stormy.outcomes if outcome.is_refused)
    livez = sorted(outcome.end_s for outcome in outcomes if not outcome.shot.class_name)
    print(f"{'':>12}  {'number':>6} {'p50 ms':>7} {'p99 ms':>7} {'most ms':>7}")
    for name, times in (("429", refused), ("/livez", livez)):
        figures = [percentile(times, 50), percentile(times, 99), times[-1]]
        print(f"{name:>12}: {len(times):>6} " + " ".join(f"{1000 * figure:>7.1f}" for figure in figures))
    share = stormy.served_per_s / calm.served_per_s
    print(
        f"{'served':>12}: {stormy.served_per_s:.2f} per second under ten times of {SLOW_PER_S:.0f},"
        f" {calm.served_per_s:.2f} without: {100 * share:.1f} %"
    )


def _as_many_as_fit(cluster: Cluster) -> list[Shot]:
    """Slots and queue full at once: the worker has always something to do, and nobody is refused."""
    url = f"{cluster.base_url}/completions"
    return [
        Shot(name=f"c{number:05}", url=url, class_name="standard", max_tokens=TOKENS) for number in range(SLOTS + QUEUE)
    ]


def _ten_times(cluster: Cluster) -> list[Shot]:
    chance = random.Random(1)
    url, at_s, shots = f"{cluster.base_url}/completions", 0.0, []
    while (at_s := at_s + chance.expovariate(10 * SLOW_PER_S)) < SECONDS:
        shots.append(Shot(name=f"t{len(shots):05}", url=url, at_s=at_s, class_name="standard", max_tokens=TOKENS))
    livez = f"{cluster.addresses[0]}/livez"
    probes = [
        Shot(name=f"livez {number}", url=livez, at_s=chance.uniform(0, SECONDS))
        for number in range(round(LIVEZ_PER_S * SECONDS))
    ]
    return chance.sample([*shots, *probes], k=len(shots) + len(probes))  # so that each process has its part of both


async def model(folder: Path) -> None:
    """What the real model can serve is measured first, by as many requests at once as may wait."""
    classes = folder / "classes.toml"
    classes.write_text(CLASSES)
    flags = ("--max-slots", str(MODEL_SLOTS), "--queue-requests", "48", "--classes", str(classes))
    async with start_cluster(folder, *flags, start_within_s=MODEL_START_S) as cluster:
        url = f"{cluster.base_url}/completions"
        burst = [
            Shot(name=f"m{number:05}", url=url, class_name="batch", model=MODEL, max_tokens=MODEL_TOKENS)
            for number in range(48)
        ]
        capacity_per_s = Service(outcomes=tuple(await fire(burst, processes=1))).served_per_s
        print(f"{MODEL}: {capacity_per_s:.1f} requests of {MODEL_TOKENS} tokens per second")
        for name, load in (("half load", 0.5), ("three times", 3.0)):
            service = await offer(
                cluster, per_s=load * capacity_per_s, seconds=SECONDS, seed=1, model=MODEL, max_tokens=MODEL_TOKENS
            )
            print_service(name, service)


def print_service(name: str, service: Service) -> None:
    print(f"{name}:")
    for line in service.lines():
        print(line)


PARTS: dict[str, Callable[[Path], Coroutine[Any, Any, None]]] = {
    "overload": overload,
    "rejection": rejection,
    "model": model,
}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        print(f"-- {name}")
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(PARTS[name](Path(folder)))


if __name__ == "__main__":
    main()
