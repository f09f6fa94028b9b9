"""What each process has loaded once it runs. import-linter reads the sources; this asks the interpreter."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {"torch", "transformers"}
NETWORK = {"aiohttp", "redis"}

IO_RING = {
    "admission.keys": "names of Redis keys",
    "admission.leases": "talks to Redis",
    "admission.redis_client": "connects to Redis",
    "admission.redis_queue": "talks to Redis",
    "admission.scripts": "loads the scripts",
    "admission.turns": "waits for turns at Redis",
}
"""The modules of admission that are not pure, and why."""


def loaded_after(*modules: str) -> set[str]:
    """The top-level packages in a fresh interpreter that has imported ``modules``."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "modules",
    [("gateway.serve",), ("gateway.up",), ("gateway.app",), ("gateway.simulate_command",)],
    ids=lambda modules: modules[0],
)
def test_a_gateway_never_loads_torch(modules: tuple[str, ...]) -> None:
    """Gigabytes of memory and seconds of start for a process that only plans."""
    assert not loaded_after(*modules) & HEAVY


@pytest.mark.parametrize("module", ["workers.server", "workers.fake", "workers.settings", "workers.wire"])
def test_a_worker_without_a_model_loads_neither_torch_nor_the_network_libraries(module: str) -> None:
    """A fake worker stands in wherever torch is not installed, and no worker ever talks to clients or Redis."""
    assert not loaded_after(module) & (HEAVY | NETWORK)


def test_the_wire_loads_only_msgpack() -> None:
    """Everybody imports it, so it must cost nothing."""
    foreign = loaded_after("workers.wire") - set(sys.stdlib_module_names) - loaded_after("msgpack")
    assert foreign == {"workers"}


def test_the_pure_ring_loads_no_event_loop_and_no_redis() -> None:
    """The simulator and the scheduler's tests run it without either."""
    assert not loaded_after(*sorted(pure_ring())) & {"asyncio", *NETWORK, *HEAVY}


def test_every_module_of_admission_is_in_one_ring() -> None:
    """A new file that the contract does not list would be free to do as it likes."""
    files = (ROOT / "admission").glob("*.py")
    packages = (ROOT / "admission").glob("*/__init__.py")
    modules = {f"admission.{path.stem}" for path in files if path.stem != "__init__"}
    modules |= {f"admission.{path.parent.name}" for path in packages}
    assert modules - set(IO_RING) == pure_ring()


def pure_ring() -> set[str]:
    """The modules that the import contract holds to be pure."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["name"].startswith("the pure ring")
    )
    return set(contract["source_modules"])
