"""How true predicted waits are, how late deadlines are kept, and how cheap a refusal is. Asserts nothing about time.

A scripted worker of 16 slots at 100 iterations a second (about 16 requests a second) behind one gateway gets half as
many again for half a minute, a fifth of them interactive. Half of them have a deadline of 0.5 to 3 s.

Run: ``python -m tests.bench.door``
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import aiohttp

from tests.system.cluster import Cluster, script, start_cluster

LOAD_S = 30.0
REQUESTS_PER_S = 24.0
DEADLINES_MS = (None, None, None, 500, 1500, 3000)
WORKER = script(output={"kind": "echo"}, slots=16, delays={"base_us": 10_000})
FLAGS = ("--fake-worker", WORKER, "--queue-requests", "64")


class Bench:
    """What clients have seen, by outcome."""

    def __init__(self, cluster: Cluster, http: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._http = http
        self._random = random.Random(1)
        self.outcomes: Counter[str] = Counter()
        self.lateness_ms: list[float] = []
        self.answered_ms: defaultdict[str, list[float]] = defaultdict(list)
        self.health_ms: list[float] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            end_s = time.monotonic() + LOAD_S
            while time.monotonic() < end_s:
                group.create_task(self._ask())
                group.create_task(self._check_health())
                await asyncio.sleep(self._random.expovariate(REQUESTS_PER_S))

    async def _ask(self) -> None:
        deadline_ms = self._random.choice(DEADLINES_MS)
        body = {
            "model": "fake",
            "prompt": "Hello there you",
            "ignore_eos": True,
            "max_tokens": self._random.randint(50, 150),
            "deadline_ms": deadline_ms,
            "service_tier": self._random.choice(["priority", "flex", "flex", "flex", "flex"]),
        }
        start_s = time.monotonic()
        async with self._http.post(f"{self._cluster.addresses[0]}/v1/completions", json=body) as answer:
            await answer.read()
        took_ms = 1000 * (time.monotonic() - start_s)
        outcome = answer.headers.get("x-sluicegate-reason", "completed")
        self.outcomes[outcome] += 1
        self.answered_ms[outcome].append(took_ms)
        if outcome == "deadline_exceeded" and deadline_ms is not None:
            self.lateness_ms.append(took_ms - deadline_ms)

    async def _check_health(self) -> None:
        start_s = time.monotonic()
        async with self._http.get(f"{self._cluster.addresses[0]}/livez") as answer:
            await answer.read()
        self.health_ms.append(1000 * (time.monotonic() - start_s))

    async def ratios(self) -> list[tuple[float, int]]:
        """Upper bounds of the ratio of observed to predicted wait, with how many were at most that."""
        async with self._http.get(f"{self._cluster.addresses[0]}/metrics") as answer:
            text = await answer.text()
        found = re.findall(r'^sluicegate_wait_ratio_bucket\{le="([^"]+)"\} (\S+)$', text, flags=re.MULTILINE)
        return [(float(bound), int(float(count))) for bound, count in found]


def tail(values: list[float]) -> str:
    """Median and p99 of some milliseconds."""
    ordered = sorted(values)
    if not ordered:
        return "none"
    return f"median {ordered[len(ordered) // 2]:.1f} ms, p99 {ordered[int(0.99 * len(ordered))]:.1f} ms"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with start_cluster(Path(folder), *FLAGS) as cluster, aiohttp.ClientSession() as http:
            bench = Bench(cluster, http)
            await bench.run()
            ratios = await bench.ratios()
    print("outcomes:", ", ".join(f"{count} {outcome}" for outcome, count in bench.outcomes.most_common()))
    at_most = dict(ratios)
    scored = at_most[float("inf")]
    near, within = (at_most[1.25] - at_most[0.8], at_most[2.0] - at_most[0.5])
    print(
        f"predicted waits: {scored} scored, observed 0.8 to 1.25 times as long {near / max(1, scored):.0%}, "
        f"0.5 to 2 times {within / max(1, scored):.0%}; longer than predicted {1 - at_most[1.0] / max(1, scored):.0%}"
    )
    print("a 504 after its deadline:", tail(bench.lateness_ms))
    print("a 429 of the door:", tail(bench.answered_ms["deadline_unreachable"]))
    print("/livez meanwhile:", tail(bench.health_ms))


if __name__ == "__main__":
    asyncio.run(main())
