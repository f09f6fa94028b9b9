"""A real balancer with the project's own configuration, in front of gateways on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.process import die_with_parent
from tests.support import wait_until
from tests.system.cluster import ROOT, consecutive_free_ports

_GATEWAYS = ("gateway-1:8080", "gateway-2:8080")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A balancer that we hand out a configuration for. ``package`` is Debian's.

    ``places`` gives, for a folder, a port and a pause between health checks, what the file says of them and what is put
    there in a test. ``arguments`` start it in the foreground, with the file as it is then.
    """

    binary: str
    package: str
    file: Path
    places: Callable[[Path, int, str], dict[str, str]]
    arguments: Callable[[Path, Path], Sequence[str | Path]]

    def __str__(self) -> str:
        return self.binary

    def found(self) -> str:
        """The program. Fails the test that needs it where there is none."""
        path = shutil.which(self.binary, path=f"{os.environ['PATH']}:/usr/sbin")
        if path is None:
            pytest.fail(f"this test needs a real {self.binary} (on Debian: apt install {self.package})")
        return path

    def log(self, folder: Path) -> Path:
        """Where all that it says goes."""
        return folder / f"{self.binary}.log"

    def configured(self, folder: Path, port: int, gateways: Sequence[str], check_every: str) -> Path:
        text = self.file.read_text()
        for place, value in (
            self.places(folder, port, check_every) | dict(zip(_GATEWAYS, gateways, strict=True))
        ).items():
            assert text.count(place) == 1, f"{self.file} says {place!r} once"
            text = text.replace(place, value)
        config = folder / self.file.name
        config.write_text(text)
        return config


HAPROXY = Kind(
    binary="haproxy",
    package="haproxy",
    file=ROOT / "deploy" / "haproxy.cfg",
    places=lambda _folder, port, check_every: {
        "bind :8080": f"bind 127.0.0.1:{port}",
        "check inter 1s": f"check inter {check_every}",
    },
    arguments=lambda _folder, config: ("-db", "-f", config),
)

_NGINX_FILES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""What it may keep on disk: all of it below its own folder, for it would be the system's."""

NGINX = Kind(
    binary="nginx",
    package="nginx",
    file=ROOT / "deploy" / "nginx.conf",
    places=lambda folder, port, _: {
        "listen 8080;": f"listen 127.0.0.1:{port};",
        "http {\n": "http {\naccess_log off;\n" + "".join(f"{it}_temp_path {folder}/{it};\n" for it in _NGINX_FILES),
    },
    arguments=lambda folder, config: (
        *("-c", config, "-p", folder, "-e", "stderr"),
        *("-g", f"daemon off; pid {folder}/nginx.pid;"),
    ),
)


@asynccontextmanager
async def balancer(kind: Kind, folder: Path, gateways: Sequence[str], *, check_every: str = "1s") -> AsyncIterator[str]:
    """The URL of a balancer over two gateways (``host:port`` each); ended with the block. Its log is in ``folder``."""
    binary = kind.found()
    (port,) = consecutive_free_ports(1)
    log, config = kind.log(folder), kind.configured(folder, port, gateways, check_every)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            binary, *kind.arguments(folder, config), stdout=output, stderr=output, preexec_fn=die_with_parent()
        )
    try:

        async def listens() -> bool:
            if process.returncode is not None:
                raise AssertionError(f"{kind} ended:\n{log.read_text()}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await wait_until(listens, f"{kind} listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()  # nginx ends its workers then, and leaves them behind when it is killed
        await process.wait()
