"""What ``docs/operating.md`` and the comments of ``admission/keys.py`` say of the keys in Redis, to hold against it.

A documented key is a name with the variable parts in capitals: ``sg:{MODEL}:mark:ENTRY``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

import redis.asyncio

from admission import keys
from admission.keys import QueueKeys
from tests.support import wait_until

ROOT = Path(__file__).parents[1]

_ROW = re.compile(r"^\| `(sg:[^`]+)` \| .* \| ([^|]+) \| (\w+) \|$", re.MULTILINE)
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_QUEUE_FIELD = re.compile(r"^    (\w+): str  # .*; (\w+_TTL_MS)$", re.MULTILINE)
_DIRECTORY_PREFIX = re.compile(r"^(\w+_PREFIX) = .*  # .*; (\w+_TTL_MS)$", re.MULTILINE)


class AtRest(StrEnum):
    """Whether a key is there when nothing waits or runs, and gateways and workers go on."""

    THERE = "yes"
    PERHAPS = "perhaps"
    GONE = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """One row of the table. ``ttl_ms`` None: the key stays for ever."""

    name: str
    ttl_ms: int | None
    at_rest: AtRest

    def matches(self, key: str) -> bool:
        parts = re.split(r"([A-Z]+)", self.name)
        pattern = "".join(".+" if number % 2 else re.escape(part) for number, part in enumerate(parts))
        return re.fullmatch(pattern, key) is not None


def documented_keys() -> list[Documented]:
    """The table of ``docs/operating.md``."""
    text = (ROOT / "docs" / "operating.md").read_text()
    return [
        Documented(name=name, ttl_ms=_ttl_ms(lifetime), at_rest=AtRest(at_rest))
        for name, lifetime, at_rest in _ROW.findall(text)
    ]


def keys_of_the_code() -> dict[str, int | None]:
    """Lifetime by name without its variable end, from ``admission/keys.py``: each has it in its comment."""
    text = Path(keys.__file__).read_text()
    queue = QueueKeys.of("MODEL")
    ttls = {getattr(queue, name): getattr(keys, ttl) for name, ttl in _QUEUE_FIELD.findall(text)}
    assert len(ttls) == len(fields(QueueKeys)), "every key of a queue has its lifetime beside it"
    directory = {getattr(keys, name): getattr(keys, ttl) for name, ttl in _DIRECTORY_PREFIX.findall(text)}
    assert len(directory) == sum(name.endswith("_PREFIX") for name in vars(keys)), "so has every other"
    return ttls | directory | {keys.EPOCH: None}


async def keys_at_rest_differ(client: redis.asyncio.Redis) -> list[str]:
    """In what the keys in Redis differ from what is documented for a cluster at rest; nothing, it is to be hoped."""
    found = sorted([key.decode() async for key in client.scan_iter()])
    ttls = {key: await client.pttl(key) for key in found}
    rows = documented_keys()
    missing = [row.name for row in rows if row.at_rest is AtRest.THERE and not any(map(row.matches, found))]
    return [f"{name} is missing" for name in missing] + [
        f"{key}: {problem}" for key in found if (problem := _problem(key, ttls[key], rows))
    ]


async def wait_for_rest(client: redis.asyncio.Redis, timeout_s: float = 5.0) -> None:
    """Return once the keys in Redis are those of a cluster at rest; else ``AssertionError`` with the difference."""
    differences: list[str] = []

    async def is_at_rest() -> bool:
        differences[:] = await keys_at_rest_differ(client)
        return not differences

    with contextlib.suppress(AssertionError):
        await wait_until(is_at_rest, "only the documented keys are left", timeout_s=timeout_s)
    assert differences == []


def _problem(key: str, left_ms: int, rows: Iterable[Documented]) -> str:
    row = next((row for row in rows if row.matches(key)), None)
    if row is None:
        return "not documented"
    if row.at_rest is AtRest.GONE:
        return "should be gone"
    if (row.ttl_ms is None) != (left_ms < 0) or (row.ttl_ms is not None and left_ms > row.ttl_ms):
        return f"lives for {left_ms} ms, documented are {row.ttl_ms}"
    return ""


def _ttl_ms(lifetime: str) -> int | None:
    if lifetime == "for ever":
        return None
    number, unit = lifetime.split()
    return int(number) * _SECONDS[unit] * 1000
