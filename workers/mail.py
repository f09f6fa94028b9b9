"""What the link thread tells the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass

from workers.link import Link
from workers.wire import PlanMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A plan of the driver behind ``link``."""

    link: Link
    plan: PlanMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLost:
    """The driver is gone: forget its sequences. Comes after its last plan and before the next driver's first."""

    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksFailed:
    """The link thread came to an end that it should not have."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Somebody wants the worker to end."""


Mail = Assigned | DriverLost | LinksFailed | Stop
