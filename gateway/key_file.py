"""The API keys of a gateway from a TOML file: one table for each key, by a name that logs may show.

    [acme-web]
    sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    tenant = "acme"
    class-ceiling = "standard"
    max-concurrent = 8

The file holds no key, only the SHA-256 of each, in hexadecimal: whoever reads it can do nothing with it, provided that
the keys themselves are random (``openssl rand -hex 32``) and not words that can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from admission.classes import PriorityClass
from gateway.class_table import ClassTable
from gateway.toml_tables import Table, read_tables

MOST_KEYS = 512
"""Each is compared with what every request brings: some 30 us in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What a key allows. ``tenant``: on whose account its requests are; by default its own name.

    ``ceiling``: the best class that it may use; ``max_concurrent``: requests at once at one gateway. None: no limit.
    """

    name: str
    digest: bytes
    tenant: str
    ceiling: PriorityClass | None = None
    max_concurrent: int | None = None


class _Fields(Table):
    """One key, as it is written."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    class_ceiling: str | None = None
    max_concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


def read_keys(path: Path, classes: ClassTable) -> tuple[ApiKey, ...]:
    """The keys that ``path`` lists. Raises ``ValueError`` that says what is wrong, without any digest."""
    keys = [_as_key(name, fields, classes) for name, fields in read_tables(path, _Fields, most=MOST_KEYS).items()]
    by_digest: dict[bytes, str] = {}
    for key in keys:
        if key.digest in by_digest:
            raise ValueError(f"{key.name}.sha256: is the key of {by_digest[key.digest]} as well")
        by_digest[key.digest] = key.name
    return tuple(keys)


def _as_key(name: str, fields: _Fields, classes: ClassTable) -> ApiKey:
    ceiling = fields.class_ceiling
    if ceiling is not None and ceiling not in classes:
        known = ", ".join(cls.name for cls in classes)
        raise ValueError(f"{name}.class-ceiling: should be one of {known}")
    return ApiKey(
        name=name,
        digest=bytes.fromhex(fields.sha256),
        tenant=name if fields.tenant is None else fields.tenant,
        ceiling=None if ceiling is None else classes[ceiling],
        max_concurrent=fields.max_concurrent,
    )
