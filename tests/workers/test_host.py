"""What the machine or the control group allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.errors import LoadError
from workers.host import free_memory, usable_cores


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    return path


def test_memory_is_what_the_system_says_is_available(cgroup: Path, meminfo: Path) -> None:
    """Without a control group, or with one that sets no limit."""
    assert free_memory(cgroup, meminfo) == 1000 * 1024
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("5\n")
    assert free_memory(cgroup, meminfo) == 1000 * 1024


def test_a_control_group_may_leave_less(cgroup: Path, meminfo: Path) -> None:
    """In a container the system's number is the host's, and taking that much means being killed."""
    (cgroup / "memory.max").write_text("600\n")
    (cgroup / "memory.current").write_text("200\n")
    assert free_memory(cgroup, meminfo) == 400


def test_a_system_that_does_not_say_is_an_error(cgroup: Path) -> None:
    """Guessing would be worse."""
    with pytest.raises(LoadError, match="how much memory"):
        free_memory(cgroup, cgroup / "missing")


def test_cores_are_those_of_the_affinity_or_of_the_quota(cgroup: Path) -> None:
    """More threads than granted time make each step wait for the slowest."""
    allowed = len(os.sched_getaffinity(0))
    assert usable_cores(cgroup) == allowed
    (cgroup / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(cgroup) == 1
    (cgroup / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(cgroup) == 1
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert usable_cores(cgroup) == allowed
