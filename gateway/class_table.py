"""The classes of this gateway, and how a request chooses one of them.

Three ways, the first that is given counts: the header ``x-priority-class`` with a class's name; the body's integer
``priority``, in vLLM's sense (lower is more urgent), which falls into the range of one class; the body's
``service_tier``, OpenAI's own. Without any it is the class of the tier ``default``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

from admission.classes import PriorityClass
from gateway.errors import Reason, Refused

CLASS_CHOICE_HEADER = "x-priority-class"


class Tier(StrEnum):
    """The tiers that classes stand for, as answers name them. A request may also say ``auto`` or ``standard``."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


class ClassTable:
    """Classes in order of their ranks, best first. Raises ``ValueError`` when no request could find its class in it."""

    def __init__(self, classes: Iterable[PriorityClass]) -> None:
        self._by_rank = tuple(sorted(classes, key=lambda cls: cls.rank))
        self._by_name = {cls.name: cls for cls in self._by_rank}
        self._by_tier = {cls.service_tier: cls for cls in reversed(self._by_rank)}
        if len(self._by_name) < len(self._by_rank) or len({cls.rank for cls in self._by_rank}) < len(self._by_rank):
            raise ValueError("no two classes have the same name or rank")
        if Tier.DEFAULT not in self._by_tier:
            raise ValueError(f"one class has the service tier '{Tier.DEFAULT}': it serves whoever asks for none")
        if sum(cls.share_percent for cls in self._by_rank) > 100:
            raise ValueError("the guaranteed shares of all classes are at most 100 percent together")
        self._check_priorities()

    def __iter__(self) -> Iterator[PriorityClass]:
        return iter(self._by_rank)

    def __getitem__(self, name: str) -> PriorityClass:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def choose(self, *, names: Iterable[str], priority: int | None, service_tier: str | None) -> PriorityClass:
        """The class of a request; ``names`` are the values of its header. Raises ``Refused`` when there is none."""
        names = tuple(names)
        if names:
            return self._named(", ".join(names))
        if priority is not None:
            return next(cls for cls in self._by_rank if cls.max_priority is None or priority <= cls.max_priority)
        return self._of_tier(service_tier or "auto")

    def _named(self, name: str) -> PriorityClass:
        if name not in self._by_name:
            message = f"The header '{CLASS_CHOICE_HEADER}' should be one of {', '.join(self._by_name)}."
            raise Refused(Reason.INVALID_VALUE, message, param=CLASS_CHOICE_HEADER)
        return self._by_name[name]

    def _of_tier(self, tier: str) -> PriorityClass:
        cls = self._by_tier.get(Tier.DEFAULT if tier in {"auto", "standard"} else tier)
        if cls is None:
            message = f"'service_tier' should be auto or one of {', '.join(sorted(self._by_tier))} here."
            raise Refused(Reason.INVALID_VALUE, message, param="service_tier")
        return cls

    def _check_priorities(self) -> None:
        """Every integer falls into one class: bounds rise from class to class, and the last class has none."""
        *bounded, last = self._by_rank
        if last.max_priority is not None:
            raise ValueError(
                f"{last.name}.max-priority: the class of the greatest rank takes all the rest, without one"
            )
        below: int | None = None
        for cls in bounded:
            if cls.max_priority is None or (below is not None and cls.max_priority <= below):
                least = "" if below is None else f" above {below}"
                raise ValueError(f"{cls.name}.max-priority: is needed here, a whole number{least}")
            below = cls.max_priority
