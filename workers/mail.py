"""What the link thread, and whoever waits for the device, tell the engine's thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers.link import Link
from workers.wire import PlanMessage

if TYPE_CHECKING:
    from workers.overlap import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A plan of the driver behind ``link``."""

    link: Link
    plan: PlanMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLost:
    """The driver is gone: forget its sequences. Comes after its last plan and before the next driver's first.

    ``settled`` is set when that is done.
    """

    link: Link
    settled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksFailed:
    """The link thread came to an end that it should not have."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """The device has done ``step``."""

    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Somebody wants the worker to end."""


Mail = Assigned | DriverLost | LinksFailed | StepEnded | Stop
