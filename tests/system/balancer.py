"""A real HAProxy with the project's own configuration, in front of gateways on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.system.cluster import ROOT, consecutive_free_ports

CONFIG = ROOT / "deploy" / "haproxy.cfg"
PLACES = ("bind :8080", "gateway-1:8080", "gateway-2:8080", "check inter 1s")
"""What the configuration says of addresses, which are others in a test, and of the pause between health checks."""

LOG = "haproxy.log"


@asynccontextmanager
async def balancer(folder: Path, gateways: Sequence[str], *, check_every: str = "1s") -> AsyncIterator[str]:
    """The URL of a balancer over two gateways (``host:port`` each); ended with the block. Its log is in ``folder``."""
    binary = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        pytest.fail("this test needs a real HAProxy (on Debian: apt install haproxy)")
    (port,) = consecutive_free_ports(1)
    log = folder / LOG
    config = folder / "haproxy.cfg"
    config.write_text(_configured(f"bind 127.0.0.1:{port}", *gateways, f"check inter {check_every}"))
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(binary, "-db", "-f", config, stdout=output, stderr=output)
    try:

        async def listens() -> bool:
            if process.returncode is not None:
                raise AssertionError(f"HAProxy ended:\n{log.read_text()}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await wait_until(listens, "HAProxy listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _configured(*values: str) -> str:
    text = CONFIG.read_text()
    for place, value in zip(PLACES, values, strict=True):
        assert text.count(place) == 1, f"{CONFIG} says {place!r} once"
        text = text.replace(place, value)
    return text
