"""What can go wrong in a worker, as far as somebody else has to know."""

from __future__ import annotations


class WorkerError(Exception):
    """Root of the room's errors; the text is one sentence for a person."""


class LoadError(WorkerError):
    """The worker cannot start with these settings: no such model, not enough memory, unsupported attention."""


class PlanError(WorkerError):
    """The driver sent a plan that cannot be right. Nothing of it ran; only ``reset`` makes the worker usable again."""
