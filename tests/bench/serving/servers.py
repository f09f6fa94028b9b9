"""What a benchmark of the gateway starts: Redis, a scripted worker, a gateway, a bare handler. And their CPU time.

CPU time is that of the whole process, user and system, in seconds with the kernel's own resolution: the clock of
another process, by its id (``clock_getcpuclockid``), which Python does not name.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.process import die_with_parent
from gateway.redis_server import RedisServer
from tests.system.cluster import ROOT, consecutive_free_ports, script
from tests.system.processes import Gateway, Processes

MODULES = {"uvloop": ("gateway", "gateway"), "asyncio": ("tests.bench.serving.plain_gateway",)}
SAYS = (
    " the water gate opens and a slow river runs down to the mill where the stones turn until the morning light comes"
)
MOST_STREAMS = 1024
KV_BLOCKS = 65_536  # of 16 tokens: about what a model of 8B finds on a large GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A gateway on ``port``, and the process ids of what it needs."""

    port: int
    gateway_pid: int
    worker_pid: int
    redis_pid: int


def cpu_s(pid: int) -> float:
    """CPU time that the process has used."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of all its threads


def side_threads_s(pid: int) -> float:
    """CPU time of the process's threads but for its first."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@asynccontextmanager
async def start_gateway(
    folder: Path, *, loop: str, iteration_us: int, flags: Sequence[str] = ()
) -> AsyncIterator[Serving]:
    """A gateway over a worker whose iterations take so long, and a little more. ``flags`` are further ones of its."""
    worker = f"unix:{folder}/worker.sock"
    processes = Processes(folder=folder, workers=(worker,))
    redis = RedisServer(folder / "redis")
    says = script(
        output={"kind": "text", "text": SAYS, "then": "repeat"},
        delays={"base_us": iteration_us},
        slots=MOST_STREAMS,
        blocks=KV_BLOCKS,
        context_length=8192,
    )
    await redis.start()
    try:
        command = ("workers", "--listen", worker, "--fake-worker", says)
        worker_pid = await processes.start(command, folder / "worker.log")
        gateway = _gateway(folder, redis.url, worker, (MODULES[loop], flags))
        processes.gateways.append(gateway)
        await processes.start_gateway(gateway)
        await processes.wait_until_ready()
        assert gateway.pid is not None
        port = int(gateway.address.rpartition(":")[2])
        yield Serving(port=port, gateway_pid=gateway.pid, worker_pid=worker_pid, redis_pid=redis.pid)
    finally:
        await processes.kill_all()
        await redis.stop()


def _gateway(folder: Path, redis_url: str, worker: str, command: tuple[tuple[str, ...], Sequence[str]]) -> Gateway:
    modules, more = command
    (port,) = consecutive_free_ports(1)
    flags = {
        "--port": port,
        "--gateway-id": "bench",
        "--redis": redis_url,
        "--worker": worker,
        "--relay": f"unix:{folder}/relay.sock",
        "--token-budget": 2 * MOST_STREAMS,
        "--queue-requests": MOST_STREAMS,
    }
    return Gateway(
        name="gateway",
        address=f"http://127.0.0.1:{port}",
        command=(*modules, *(str(word) for flag in flags.items() for word in flag), *more),
        log=folder / "gateway.log",
    )


@asynccontextmanager
async def start_bare(
    folder: Path, events: list[str], *, loop: str, interval_s: float
) -> AsyncIterator[tuple[int, int]]:
    """The bare handler; its port and its process id."""
    path = folder / "events.json"
    path.write_text(json.dumps(events))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.serving.bare", str(path), str(interval_s), loop),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        preexec_fn=die_with_parent(),
    )
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.kill()
        await process.wait()
