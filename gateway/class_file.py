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

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from admission.classes import DEFAULT_CLASSES, SECOND_US, PriorityClass
from admission.standing import MAX_RANK
from gateway.class_table import ClassTable
from gateway.deadlines import MOST_DEADLINE_MS
from gateway.toml_tables import Table, read_tables

MOST_CLASSES = 16
"""Each is a line of its own in the store and a label of metrics; a person can keep fewer apart."""

MOST_WAITING = 1_000_000
MOST_WAITING_TOKENS = 1_000_000_000_000
"""Far more than one Redis would hold; a larger number is a slip."""


class _Fields(Table):
    """One class, as it is written. Names and units are the file's; ``PriorityClass`` explains the fields."""

    rank: Annotated[int, Field(ge=0, le=MAX_RANK)]
    service_tier: Literal["priority", "default", "flex"]
    head_start_s: Annotated[float, Field(ge=0, le=24 * 3600)] = 0.0
    max_priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = None
    deadline_ms: Annotated[int, Field(ge=1, le=MOST_DEADLINE_MS)] | None = None
    share_percent: Annotated[int, Field(ge=0, le=100)] = 0
    max_waiting: Annotated[int, Field(ge=0, le=MOST_WAITING)] | None = None
    max_waiting_tokens: Annotated[int, Field(ge=0, le=MOST_WAITING_TOKENS)] | None = None
    no_queue: bool = False
    sheds: bool = False
    sheddable: bool = False
    preempts: bool = True
    preemptible: bool = True

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.no_queue and (self.max_waiting or self.max_waiting_tokens is not None):
            raise ValueError("no-queue says that none waits, so it goes with no other bound on what waits")
        return self

    def as_class(self, name: str) -> PriorityClass:
        return PriorityClass(
            name=name,
            rank=self.rank,
            head_start_us=round(self.head_start_s * SECOND_US),
            service_tier=self.service_tier,
            max_priority=self.max_priority,
            default_deadline_us=None if self.deadline_ms is None else 1_000 * self.deadline_ms,
            share_percent=self.share_percent,
            max_waiting=0 if self.no_queue else self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
            sheds=self.sheds,
            sheddable=self.sheddable,
            preempts=self.preempts,
            preemptible=self.preemptible,
        )


def read_classes(path: Path | None) -> ClassTable:
    """The classes that ``path`` lists; None: the default ones. Raises ``ValueError`` that says all that is wrong."""
    if path is None:
        return ClassTable(DEFAULT_CLASSES)
    tables = read_tables(path, _Fields, most=MOST_CLASSES)
    return ClassTable([fields.as_class(name) for name, fields in tables.items()])
