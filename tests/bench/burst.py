"""A burst through the whole stack, beside transformers' own decode step on the same machine in the same run.

64 requests at once over HTTP, streamed, with prompts of 128 random tokens and output lengths from an exponential
distribution of mean 64, at most 256, eos ignored: against `sluicegate up` with 32 slots. The clients share the cores
with the server.

Machines differ, and shared ones from minute to minute. So beside tokens per second it prints them times the seconds
that a decode step of 32 sequences with 200 tokens of context takes transformers, the mean of one measured before each
run and one after it: 32 would be a server that does nothing but such steps, back to back, always full. And it prints
how long the worker computed by its own reports, and the processor time of each process.

Then the same burst once more, at a server of its own whose worker and gateway run under stopwatches
(``tests/bench/layers``): where the time of an iteration goes, layer by layer. They cost a little, so no figure of the
runs before is theirs; how much they cost is printed.

Run: ``python -m tests.bench.burst [rate | layers]``, both when none is named. Prints, asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from tests.bench.layers.marks import read
from tests.bench.layers.table import Seen, table
from tests.system.cluster import Cluster, descendants, start_cluster
from workers.engine_settings import DEFAULT_MODEL

REQUESTS, PROMPT, MEAN_OUTPUT, MOST_OUTPUT = 64, 128, 64, 256
WORDS = range(1000, 40_000)  # ids of plain tokens
REFERENCE = (32, 200)  # sequences, and tokens of context, of the step that figures are normalised by
START_WITHIN_S = 300.0
WARM_UP = -1
ROLES = {"worker": "workers\0", "gateway": "gateway\0gateway\0", "redis": "redis-server"}
"""Processes of the server, by what stands in their command lines."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """One request as its client sees it; times in seconds."""

    prompt: list[int]
    max_tokens: int
    sent_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    tokens: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--model-cache", default=None)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--forward", default="auto")
    parser.add_argument("--quantize", default=None)
    parser.add_argument("--threads", default=None)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("only", nargs="?", choices=("rate", "layers"))
    options = parser.parse_args()
    if options.only != "layers":
        asyncio.run(bursts(options))
    if options.only != "rate":
        asyncio.run(burst_by_layers(options))


def reference_ms(options: argparse.Namespace) -> float:
    """In a process of its own, whose memory and threads are gone when the server starts."""
    program = (
        "import torch; from tests.bench.dense import Dense;"
        f"print(Dense(model={options.model!r}, dtype=torch.{options.dtype})"
        f".decode_ms({REFERENCE[0]}, context={REFERENCE[1]}))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=600).stdout
    return float(output.split()[-1])


def server_flags(options: argparse.Namespace) -> list[str]:
    flags = ["--model", options.model, "--max-slots", "32", "--max-model-len", "1024"]
    flags += [] if options.quantize else ["--dtype", options.dtype]
    for name in ("model_cache", "forward", "quantize", "threads"):
        value = getattr(options, name)
        flags += [] if value is None else [f"--{name.replace('_', '-')}", value]
    return flags


async def bursts(options: argparse.Namespace) -> None:
    normalised = []
    with tempfile.TemporaryDirectory() as folder:
        async with start_cluster(Path(folder), *server_flags(options), start_within_s=START_WITHIN_S) as cluster:
            await burst(cluster.base_url, WARM_UP)
            before_ms = reference_ms(options)
            for run in range(options.runs):
                spent = await Spent.by(cluster)
                streams = await burst(cluster.base_url, run)
                spent = (await Spent.by(cluster)).since(spent)
                after_ms = reference_ms(options)
                rate = report(f"run {run}", streams, spent)
                normalised.append(rate * (before_ms + after_ms) / 2000)
                steps = f"{before_ms:.0f} ms before, {after_ms:.0f} after"
                print(f"  times transformers' step ({steps}): {normalised[-1]:.1f}")
                before_ms = after_ms
    print(f"normalised, median of {options.runs} runs: {statistics.median(normalised):.1f}")


async def burst_by_layers(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        up = ("tests.bench.layers.up", folder)
        flags = server_flags(options)
        async with start_cluster(out, *flags, start_within_s=START_WITHIN_S, module=up) as cluster:
            await burst(cluster.base_url, WARM_UP)
            spent, began_s = await Spent.by(cluster), time.perf_counter()
            streams = await burst(cluster.base_url, 0)
            ended_s, spent = time.perf_counter(), (await Spent.by(cluster)).since(spent)
            step_ms = reference_ms(options)
        worker, gateway = read(out / "workers.json"), read(out / "gateway.json")
    arrivals_s = [at_s for stream in streams for at_s in stream.arrivals_s]
    others = {role: spent.cpu_s[role] for role in ("redis", "clients")}
    seen = Seen(began_s=began_s, ended_s=ended_s, arrivals_s=arrivals_s, cpu_s=others)
    report("under stopwatches", streams, spent)
    print(*table(worker, gateway, seen), sep="\n")
    count, context = REFERENCE
    print(f"beside it, transformers' own step of {count} sequences at {context} tokens: {step_ms:.1f} ms")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds since the start: by the worker's reports, and of the processors by process (``clients``: this one)."""

    busy_s: float
    cpu_s: dict[str, float]

    @classmethod
    async def by(cls, cluster: Cluster) -> Spent:
        cpu_s = _cpu_by_role(cluster.process.pid)
        return cls(
            await cluster.metric("sluicegate_worker_busy_seconds_total"),
            cpu_s,
        )

    def since(self, before: Spent) -> Spent:
        cpu_s = {role: spent - before.cpu_s[role] for role, spent in self.cpu_s.items()}
        return Spent(self.busy_s - before.busy_s, cpu_s)


def _cpu_by_role(server: int) -> dict[str, float]:
    cpu_s = {"clients": time.process_time()} | dict.fromkeys(ROLES, 0.0)
    for pid in descendants(server):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        role = next((role for role, mark in ROLES.items() if mark in command), None)
        if role is not None:
            cpu_s[role] += _cpu_s(pid)
    return cpu_s


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def burst(base_url: str, run: int) -> list[Stream]:
    """Other text in each run, so that no prefix is known; the same lengths."""
    lengths, words = Random(1), Random(f"burst {run}")
    count = 4 if run == WARM_UP else REQUESTS
    streams = [
        Stream(
            prompt=[words.choice(WORDS) for _ in range(PROMPT)],
            max_tokens=max(1, min(MOST_OUTPUT, round(lengths.expovariate(1 / MEAN_OUTPUT)))),
        )
        for _ in range(count)
    ]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as http:
        model = (await (await http.get(f"{base_url}/models")).json())["data"][0]["id"]
        await asyncio.gather(*(receive(http, base_url, model, stream) for stream in streams))
    return streams


async def receive(http: aiohttp.ClientSession, base_url: str, model: str, stream: Stream) -> None:
    body = {
        "model": model,
        "prompt": stream.prompt,
        "max_tokens": stream.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream.sent_s = time.perf_counter()
    async with http.post(f"{base_url}/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            stream.arrivals_s.append(time.perf_counter())
            usage = json.loads(line[5:]).get("usage")
            if usage is not None:
                stream.tokens = usage["completion_tokens"]


def report(name: str, streams: list[Stream], spent: Spent) -> float:
    """Print a run; its tokens per second."""
    began = min(stream.sent_s for stream in streams)
    took_s = max(stream.arrivals_s[-1] for stream in streams) - began
    tokens = sum(stream.tokens for stream in streams)
    gaps = [b - a for stream in streams for a, b in zip(stream.arrivals_s, stream.arrivals_s[1:], strict=False)]
    first = [stream.arrivals_s[0] - stream.sent_s for stream in streams]
    rate = tokens / took_s
    print(f"{name}: {len(streams)} requests, {tokens} tokens in {took_s:.1f} s: {rate:.0f} tokens/s")
    print(f"  between tokens {1000 * statistics.median(gaps):.1f} ms in the median, {1000 * max(gaps):.0f} at most;")
    print(f"  to the first {1000 * statistics.median(first):.0f} ms in the median, {1000 * max(first):.0f} at most")
    print(f"  the worker computed for {spent.busy_s:.1f} s;", end=" ")
    print("of the processors:", ", ".join(f"{role} {seconds:.1f} s" for role, seconds in spent.cpu_s.items()))
    return rate


if __name__ == "__main__":
    main()
