"""A worker as a process of its own, for tests and benchmarks that measure one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.workers.gateway_end import GatewayEnd

ITERATION_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One that serves, at ``path``."""

    path: Path
    pid: int

    def connect(self) -> GatewayEnd:
        """A gateway's end that waits for long iterations."""
        end = GatewayEnd(self.path)
        end.sock.settimeout(ITERATION_WITHIN_S)
        return end

    @property
    def processor_s(self) -> float:
        """Processor time that it has taken, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"the system does not say what process {self.pid} takes")


@contextmanager
def worker_process(flags: Mapping[str, object]) -> Iterator[WorkerProcess]:
    """Start a worker with ``flags`` by name, wait until it serves, and end it. Its log is not kept."""
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp") as folder:
        path = Path(folder) / "worker.sock"
        given = {"listen": f"unix:{path}", "log-format": "json"} | dict(flags)
        command = [sys.executable, "-m", "workers", *(f"--{name}={value}" for name, value in given.items())]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not path.exists():
                if process.poll() is not None:
                    raise SystemExit("the worker did not start; run it alone to see why")
                time.sleep(0.1)
            yield WorkerProcess(path=path, pid=process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)
