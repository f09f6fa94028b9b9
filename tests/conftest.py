"""A real Redis for the tests that ask for one, and the rule that no test leaves a key behind for ever."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import redis
import redis.asyncio

import tests.examples  # noqa: F401 (registers the profile that `make check` asks for)
from admission.keys import is_permanent
from admission.redis_client import connect
from gateway.redis_server import RedisServer

TEST_REDIS_SERVER = "TEST_REDIS_SERVER"  # path of another redis-server to test against
NO_EXPIRY = -1
NEEDS_TORCH = re.compile(r"^pytestmark = .*\bpytest\.mark\.torch\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run that wants no torch (`make check`) does not even import the files of tests that are all marked so."""
    if "not torch" not in config.option.markexpr or not collection_path.name.startswith("test_"):
        return None
    return True if NEEDS_TORCH.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a GPU run when they are asked for (``-m cuda``), those of x86-64 code on Linux there; else they are
    reported as deselected.
    """
    elsewhere = set() if "cuda" in config.option.markexpr else {"cuda"}
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        elsewhere.add("x86")
    out = [item for item in items if any(item.get_closest_marker(mark) for mark in elsewhere)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def redis_binary() -> Path | None:
    """The ``redis-server`` to test against; None: the one that the gateway would start."""
    path = os.environ.get(TEST_REDIS_SERVER)
    return Path(path) if path else None


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A new directory with a path short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp") as place:
        yield Path(place)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis_server(redis_binary: Path | None) -> AsyncIterator[RedisServer]:
    """One real Redis for the whole run. Tests that freeze or fill Redis take ``own_redis``."""
    with tempfile.TemporaryDirectory(prefix="sg-redis-", dir="/tmp") as place:
        server = RedisServer(Path(place), binary=redis_binary)
        await server.start()
        yield server
        await server.stop()


@pytest_asyncio.fixture
async def own_redis(run_dir: Path, redis_binary: Path | None) -> AsyncIterator[RedisServer]:
    """A Redis of this test alone: to freeze, to fill, to stop."""
    server = RedisServer(run_dir, binary=redis_binary)
    await server.start()
    yield server
    os.kill(server.pid, signal.SIGCONT)
    await server.stop()


@pytest_asyncio.fixture
async def redis_client(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of an empty database, as the gateway would make it."""
    client = connect(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture(autouse=True)
def every_key_expires(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a key without TTL, unless ``admission.keys`` explains why it is permanent."""
    if "redis_server" not in request.fixturenames:
        yield
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    yield
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        left = [key.decode() for key in client.scan_iter() if client.ttl(key) == NO_EXPIRY]
        client.flushall()
    unexplained = [key for key in left if not is_permanent(key)]
    assert not unexplained, f"keys without TTL that admission/keys.py does not explain: {unexplained}"
