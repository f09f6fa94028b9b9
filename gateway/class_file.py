"""The classes of a cluster from a TOML file: one table for each class, by its name.

    [interactive]
    rank = 0
    head-start-s = 30
    service-tier = "priority"
    max-priority = -1

The file is the whole list: what it does not name does not exist. Without one there are the default classes. All
gateways of a cluster need the same, for they share one queue.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from admission.classes import DEFAULT_CLASSES, SECOND_US, PriorityClass
from admission.standing import MAX_RANK
from gateway.class_table import ClassTable
from gateway.deadlines import MOST_DEADLINE_MS

MOST_CLASSES = 16
"""Each is a line of its own in the store and a label of metrics; a person can keep fewer apart."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


_PROBLEMS = {"missing": "is required", "extra_forbidden": "is not a known field"}


class _Fields(BaseModel):
    """One class, as it is written. Names and units are the file's; ``PriorityClass`` explains the fields."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    rank: Annotated[int, Field(ge=0, le=MAX_RANK)]
    service_tier: Literal["priority", "default", "flex"]
    head_start_s: Annotated[float, Field(ge=0, le=24 * 3600)] = 0.0
    max_priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = None
    deadline_ms: Annotated[int, Field(ge=1, le=MOST_DEADLINE_MS)] | None = None

    def as_class(self, name: str) -> PriorityClass:
        return PriorityClass(
            name=name,
            rank=self.rank,
            head_start_us=round(self.head_start_s * SECOND_US),
            service_tier=self.service_tier,
            max_priority=self.max_priority,
            default_deadline_us=None if self.deadline_ms is None else 1_000 * self.deadline_ms,
        )


def read_classes(path: Path | None) -> ClassTable:
    """The classes that ``path`` lists; None: the default ones. Raises ``ValueError`` that says all that is wrong."""
    if path is None:
        return ClassTable(DEFAULT_CLASSES)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"is not valid TOML: {error}") from None
    if not 1 <= len(content) <= MOST_CLASSES:
        raise ValueError(f"has {len(content)} classes; there may be 1 to {MOST_CLASSES}")
    wrong: list[str] = []
    classes = [cls for name, table in content.items() if (cls := _read_class(name, table, wrong)) is not None]
    if wrong:
        raise ValueError("; ".join(wrong))
    return ClassTable(classes)


def _read_class(name: str, table: Any, wrong: list[str]) -> PriorityClass | None:
    """The class in ``table``; what keeps it from being one is added to ``wrong``."""
    if not _NAME.fullmatch(name):
        wrong.append(f"{name!r} is no name of a class: small letters, digits and dashes, at most 32")
        return None
    if not isinstance(table, dict):
        wrong.append(f"{name}: should be a table, [{name}]")
        return None
    try:
        fields = _Fields.model_validate({key.replace("-", "_"): value for key, value in table.items()})
    except ValidationError as error:
        for item in error.errors(include_url=False):
            field = str(item["loc"][0]).replace("_", "-")
            wrong.append(f"{name}.{field}: {_PROBLEMS.get(item['type'], item['msg'].removeprefix('Input '))}")
        return None
    return fields.as_class(name)
