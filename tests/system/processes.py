"""Gateways and workers started one by one, each as its own command: to kill, or to give a way of its own to Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gateway.process import die_with_parent
from tests.support import wait_until
from tests.system.cluster import ROOT, START_WITHIN_S, consecutive_free_ports, metric_of, still_running


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One gateway process, and how to start it again."""

    name: str
    address: str
    command: tuple[str, ...]
    log: Path
    pid: int | None = None

    @property
    def completions(self) -> str:
        return f"{self.address}/v1/completions"

    def kill(self) -> None:
        """SIGKILL, from wherever."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)

    async def is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(f"{self.address}/readyz") as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


@dataclass(slots=True, kw_only=True)
class Processes:
    """What runs. Addresses of workers are known before they start."""

    folder: Path
    workers: tuple[str, ...]
    gateways: list[Gateway] = field(default_factory=list)
    _children: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self, command: Sequence[str], log: Path) -> int:
        with log.open("ab") as output:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                preexec_fn=die_with_parent(),
            )
        self._children.append(child)
        return child.pid

    async def start_gateway(self, gateway: Gateway) -> None:
        """For the first time or again; ``wait_until_ready`` waits for it."""
        gateway.pid = await self.start(gateway.command, gateway.log)

    async def wait_until_ready(self) -> None:
        for gateway in self.gateways:
            await wait_until(gateway.is_ready, f"{gateway.name} is ready, see {gateway.log}", timeout_s=START_WITHIN_S)

    async def is_idle(self) -> bool:
        """Whether no gateway that runs counts anything in use."""
        names = ("sluicegate_slots_in_use", "sluicegate_kv_blocks_in_use", "sluicegate_queue_requests")
        addresses = [gateway.address for gateway in self.gateways if gateway.pid and still_running({gateway.pid})]
        return not any([await metric_of(addresses, name) for name in (*names, "sluicegate_streams_open")])

    async def kill_all(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.kill()
            await child.wait()


@asynccontextmanager
async def start_apart(
    folder: Path, *, redis_urls: Sequence[str], fake_worker: str, workers: int = 2, flags: Sequence[str] = ()
) -> AsyncIterator[Processes]:
    """One gateway for each of ``redis_urls``, over scripted workers; ready. ``folder`` is short enough for sockets."""
    addresses = tuple(f"unix:{folder}/w{number}.sock" for number in range(workers))
    processes = Processes(folder=folder, workers=addresses)
    try:
        for number, address in enumerate(addresses):
            log = folder / f"w{number}.log"
            await processes.start(("workers", "--listen", address, "--fake-worker", fake_worker), log)
        ports = consecutive_free_ports(len(redis_urls))
        for number, (port, url) in enumerate(zip(ports, redis_urls, strict=True)):
            gateway = Gateway(
                name=f"g{number}",
                address=f"http://127.0.0.1:{port}",
                command=(
                    *("gateway", "gateway", "--port", str(port), "--gateway-id", f"g{number}", "--redis", url),
                    *("--worker", ",".join(addresses), "--relay", f"unix:{folder}/g{number}.sock", *flags),
                ),
                log=folder / f"g{number}.log",
            )
            processes.gateways.append(gateway)
            await processes.start_gateway(gateway)
        await processes.wait_until_ready()
        yield processes
    finally:
        await processes.kill_all()
