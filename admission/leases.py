"""Leases and fencing numbers, one key each, so that they also work where keys live on different servers.

A lease only keeps two holders from working against each other most of the time. What makes it safe that a holder may
have lost it without knowing is the epoch: it grows with every take, and a worker refuses whoever comes with an old one.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import redis.asyncio

from admission.keys import EPOCH


class Leases:
    """Leases held in the name of ``holder``. Calls raise what redis-py raises."""

    def __init__(self, client: redis.asyncio.Redis, *, holder: str, ttl_ms: int) -> None:
        self._client = client
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._take = _script(client, "take_lease")
        self._next_epoch = _script(client, "next_epoch")
        self._renew = _script(client, "renew_lease")
        self._release = _script(client, "release_lease")

    async def take(self, key: str, *, above_epoch: int) -> int | None:
        """A new epoch above ``above_epoch`` when nobody else holds the lease, taken before included; else None."""
        if not await self._take(keys=[key], args=[self._holder, self._ttl_ms]):
            return None
        return int(await self._next_epoch(keys=[EPOCH], args=[above_epoch]))

    async def renew(self, key: str) -> bool:
        """Whether the lease is still this holder's; then its time starts anew."""
        return bool(await self._renew(keys=[key], args=[self._holder, self._ttl_ms]))

    async def is_known(self, key: str) -> bool:
        """Whether anybody holds the lease, or gave it up lately. False: it ran out, or the store lost its data."""
        return bool(await self._client.exists(key))

    async def release(self, key: str) -> None:
        await self._release(keys=[key], args=[self._holder])


def _script(client: redis.asyncio.Redis, name: str) -> Any:
    return client.register_script((resources.files("admission") / "lua" / f"{name}.lua").read_text())
