"""What `sluicegate up` looks at from outside: free ports and Redis before, readiness during, the model's name after."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import aiohttp

from admission.queue import StoreUnavailable
from admission.redis_client import check_server, connect

ANSWER_WITHIN_S = 2.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 (recognised, not bound)


def first_unusable_port(host: str, ports: Iterable[int]) -> str | None:
    """A sentence on the first of ``ports`` that nobody can listen on now; None when all are free."""
    for port in ports:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        except OSError as error:
            return f"cannot listen on port {port} of {host}: {(error.strerror or str(error)).lower()}"
    return None


async def redis_problem(url: str) -> str | None:
    """A sentence on why this Redis cannot hold the queue, found within about a second; None when it can."""
    client = connect(url)
    try:
        await check_server(client)
    except StoreUnavailable as error:
        return f"--redis cannot be used: {error}"
    finally:
        await client.aclose()
    return None


class Probe:
    """Asks gateways over HTTP, as a client on this machine would."""

    def __init__(self, host: str, ports: Sequence[int]) -> None:
        name = _ANY_ADDRESS.get(host, host)
        name = f"[{name}]" if ":" in name else name
        self.addresses = [f"http://{name}:{port}" for port in ports]
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_WITHIN_S))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def all_ready(self) -> bool:
        """Whether every gateway says that it can serve."""
        for address in self.addresses:
            try:
                async with self._session.get(f"{address}/readyz") as answer:
                    if answer.status != 200:
                        return False
            except (aiohttp.ClientError, TimeoutError):
                return False
        return True

    async def model(self) -> str | None:
        """The name of the first model that is served; None when the gateway does not tell."""
        try:
            async with self._session.get(f"{self.addresses[0]}/v1/models") as answer:
                return str((await answer.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            return None
