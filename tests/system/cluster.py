"""`sluicegate up` as a real command with real children, for tests to talk to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from gateway.process import die_with_parent
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
READY = "Ctrl-C stops it."
START_WITHIN_S = 60.0  # without a model; starting Python four times on a loaded machine
STOP_WITHIN_S = 40.0
UP = ("gateway", "up")


def script(**fields: object) -> str:
    """A script for `--fake-worker`, inline."""
    return json.dumps(fields)


class Cluster:
    """One running `up`: its addresses, its process and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int], out: Path, err: Path) -> None:
        self.process = process
        self.addresses = [f"http://127.0.0.1:{port}" for port in ports]
        self._out = out
        self._err = err

    @property
    def base_url(self) -> str:
        return f"{self.addresses[0]}/v1"

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def is_ready(self) -> bool:
        if self.process.returncode is not None:
            raise AssertionError(f"it ended while starting, with exit code {self.process.returncode}:\n{self.err}")
        return READY in self.out

    async def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        self.process.send_signal(signal.SIGINT)
        return await asyncio.wait_for(self.process.wait(), STOP_WITHIN_S)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the gateways; 0 where nothing has been counted yet."""
        return await metric_of(self.addresses, name, **labels)

    async def is_idle(self) -> bool:
        """Whether no gateway counts anything in use."""
        names = ("sluicegate_slots_in_use", "sluicegate_kv_blocks_in_use", "sluicegate_queue_requests")
        return not any([await self.metric(name) for name in names])


async def metric_of(addresses: Iterable[str], name: str, **labels: str) -> float:
    """The sum of a metric over the gateways at ``addresses``."""
    total = 0.0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        for address in addresses:
            async with session.get(f"{address}/metrics") as answer:
                total += sum_of_samples(await answer.text(), name, labels)
    return total


def sum_of_samples(text: str, name: str, labels: dict[str, str]) -> float:
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if found and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1] or "")).items():
            total += float(found[2])
    return total


def consecutive_free_ports(number: int) -> list[int]:
    """The first of a run of ports that are all free now; outside the range from which the system hands out its own."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, number):
        ports = list(range(first, first + number))
        if all(_is_free(port) for port in ports):
            return ports
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``, whatever their session."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | descendants(child)
    return found


def still_running(pids: set[int]) -> set[int]:
    """Those of ``pids`` that run; one that has ended and waits to be collected does not."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            running.add(pid)
    return running


@asynccontextmanager
async def start_cluster(
    folder: Path,
    *flags: str,
    gateways: int = 1,
    start_within_s: float = START_WITHIN_S,
    module: Sequence[str] = UP,
) -> AsyncIterator[Cluster]:
    """`sluicegate up` with ``flags`` on free ports, serving; stopped at the end, and nothing of it left.

    ``module`` and its first words run it.
    """
    ports = consecutive_free_ports(gateways)
    command = [sys.executable, "-m", *module, "--port", str(ports[0]), "--gateways", str(gateways), *flags]
    out, err = folder / "stdout", folder / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
    cluster = Cluster(process, ports, out, err)
    try:
        await wait_until(lambda: cluster.is_ready, "it is ready", timeout_s=start_within_s)
        yield cluster
    finally:
        children = descendants(process.pid)
        if process.returncode is None:
            try:
                await cluster.interrupt()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        await wait_until(lambda: not still_running(children), "no child is left", timeout_s=5)
