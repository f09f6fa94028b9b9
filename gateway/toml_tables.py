"""Files that list things by name: in TOML, one table for each, strict, and every mistake named with its place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PROBLEMS = {"missing": "is required", "extra_forbidden": "is not a known field"}


class Table(BaseModel):
    """The fields of one table. In the file their names may be written with dashes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


AnyTable = TypeVar("AnyTable", bound=Table)


def read_tables(path: Path, kind: type[AnyTable], *, most: int) -> dict[str, AnyTable]:
    """The tables of the file by name, 1 to ``most`` of them. Raises ``ValueError`` that says all that is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"is not valid TOML: {error}") from None
    if not 1 <= len(content) <= most:
        raise ValueError(f"has {len(content)} tables; there may be 1 to {most}")
    wrong: list[str] = []
    tables = {name: _read(name, value, kind, wrong) for name, value in content.items()}
    if wrong:
        raise ValueError("; ".join(wrong))
    return {name: table for name, table in tables.items() if table is not None}


def _read(name: str, value: Any, kind: type[AnyTable], wrong: list[str]) -> AnyTable | None:
    """The table in ``value``; what keeps it from being one is added to ``wrong``."""
    if not _NAME.fullmatch(name):
        wrong.append(f"{name!r} is no name: small letters, digits and dashes, a letter first, at most 32")
        return None
    if not isinstance(value, dict):
        wrong.append(f"{name}: should be a table, [{name}]")
        return None
    try:
        return kind.model_validate({key.replace("-", "_"): item for key, item in value.items()})
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            place = ".".join([name, *(str(part).replace("_", "-") for part in item["loc"][:1])])
            message = item["msg"].removeprefix("Input ").removeprefix("Value error, ")
            wrong.append(f"{place}: {_PROBLEMS.get(item['type'], message)}")
        return None
