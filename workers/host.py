"""What this machine, or the control group that we run in, lets us have."""

from __future__ import annotations

import os
from pathlib import Path

from workers.errors import LoadError

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that this process may use: its affinity, or the time that its control group grants if that is less."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit():
        cores = min(cores, max(int(quota) // int(period), 1))
    return cores


def free_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """Bytes of memory that can be had: the system's estimate, or what the control group leaves if that is less."""
    available = _available(meminfo)
    limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit():
        available = min(available, max(int(limit) - int(used), 0))
    return available


def _available(meminfo: Path) -> int:
    for line in _read(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LoadError("The system does not say how much memory is available.")


def _read(path: Path) -> str:
    """The text of a file of the system; empty where it has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
