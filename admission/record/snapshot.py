"""The whole state of a scheduler as data, and a scheduler that goes on from it.

A scheduler is a graph of objects of this package: sequences that several parts hold, lists, tables, and rules that are
functions. ``freeze`` walks the graph and writes every object once, in the order in which it is met; ``thaw`` makes the
same graph anew, with the same parts shared. Only classes and functions of the tables below can be in it, by name, so a
log never brings anything to life but a scheduler.

A state is of the version that wrote it: where the attributes of a class are others, it is refused.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import chain
from typing import Any

import msgpack

from admission import order, victims
from admission.batch import Batch
from admission.blocks import BlockPool
from admission.calendar import Deadlines, StepCalendar
from admission.events import Ended, EndReason, Paused, PauseReason, SequenceSpec
from admission.ledger import Holding, Ledger, Promise
from admission.lifecycle import State
from admission.limits import Limits
from admission.memory import Memory
from admission.planner import Planner
from admission.prefixes import Prefixes
from admission.presets import Batching, KvAdmission, PrefillRule, PrefixReuse, Preset, Progress, SlotPreemption, preset
from admission.roster import Outbox, Roster
from admission.scheduler import PlanInFlight, Scheduler
from admission.sequence import Sequence
from admission.slots import Slots
from admission.swaps import Swaps


class SnapshotError(ValueError):
    """The data is no state of a scheduler of this version."""


_CLASSES: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        Batch,
        BlockPool,
        Deadlines,
        Ended,
        Holding,
        Ledger,
        Limits,
        Memory,
        Outbox,
        Paused,
        PlanInFlight,
        Planner,
        Prefixes,
        Preset,
        Roster,
        Scheduler,
        Sequence,
        SequenceSpec,
        Slots,
        StepCalendar,
        Swaps,
    )
}
_ENUMS: Mapping[str, type[Enum]] = {
    cls.__name__: cls
    for cls in (
        Batching,
        EndReason,
        KvAdmission,
        PauseReason,
        PrefillRule,
        PrefixReuse,
        Progress,
        Promise,
        SlotPreemption,
        State,
    )
}
_RULES: Mapping[str, Callable[..., Any]] = {
    "as_claimed": order.as_claimed,
    **order.ORDERS,
    "newest": victims.newest,
    "lowest_class_newest": victims.lowest_class_newest,
    "least_lost_work": victims.least_lost_work,
}
_MAKERS: dict[str, Callable[[], Any]] = {"list": list, "deque": deque, "dict": dict, "counter": Counter}
_CONTAINERS = {maker: name for name, maker in _MAKERS.items()}
_SCALARS = frozenset({type(None), bool, int, str, bytes})


def freeze(scheduler: Scheduler) -> bytes:
    """The state of ``scheduler``, which does not change. Costs a pass over its sequences and its pool."""
    packed: bytes = msgpack.packb(_Freezer().value(scheduler), use_bin_type=True)
    return packed


def thaw(state: bytes) -> Scheduler:
    """A scheduler in that state. Raises ``SnapshotError``."""
    try:
        scheduler = _Thawer().value(msgpack.unpackb(state, use_list=False, raw=False, strict_map_key=False))
    except SnapshotError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise SnapshotError(f"this is no state of a scheduler of this version: {error!r}") from None
    if not isinstance(scheduler, Scheduler):
        raise SnapshotError("this is the state of something else")
    return scheduler


class _Freezer:
    """A scalar stands for itself. Anything else is a list that begins with what it is:

    ``("ref", n)`` the n-th object met before; ``("enum", class, value)``; ``("rule", name)``; ``("range", a, b)``;
    ``("tuple", ...)`` and the other containers with their items; ``("object", class, names, values)``. A tuple never
    changes, so which parts share it does not matter: it is written each time.
    """

    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        self.kept: list[object] = []  # so that no id is used twice

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is tuple:
            return ("tuple", *self._items(value))
        if isinstance(value, Enum):
            return ("enum", kind.__name__, value.value)
        return self._rule(value) or self._shared(value)

    def _rule(self, value: Any) -> Any:
        if type(value) is range:
            return ("range", value.start, value.stop)
        name = getattr(value, "__name__", None)
        return ("rule", name) if name is not None and _RULES.get(name) is value else None

    def _shared(self, value: Any) -> Any:
        number = self._met.get(id(value))
        if number is not None:
            return ("ref", number)
        self._met[id(value)] = len(self.kept)
        self.kept.append(value)
        kind = type(value)
        if kind in _CONTAINERS:
            return (_CONTAINERS[kind], *self._items(value))
        if _CLASSES.get(kind.__name__) is not kind:
            raise TypeError(f"a scheduler's state holds a {kind.__name__}, which has no place in it")
        names = _layout(kind) if is_dataclass(kind) else _attributes(value)
        return ("object", kind.__name__, names, tuple(self._items([getattr(value, name) for name in names])))

    def _items(self, container: Any) -> Iterable[Any]:
        parts = tuple(chain.from_iterable(container.items())) if isinstance(container, dict) else container
        if _SCALARS.issuperset(map(type, parts)):  # a pool has many numbers
            return parts
        return [part if type(part) in _SCALARS else self.value(part) for part in parts]


class _Thawer:
    """Objects get their numbers as in ``_Freezer``: when they are met, before what is in them."""

    def __init__(self) -> None:
        self._met: list[Any] = []

    def value(self, data: Any) -> Any:
        if type(data) in _SCALARS:
            return data
        kind, *rest = data
        if kind == "tuple":
            return tuple([item if type(item) in _SCALARS else self.value(item) for item in rest])
        if kind == "ref":
            return self._met[rest[0]]
        if kind == "object":
            return self._object(*rest)
        return self._container(kind, rest) if kind in _MAKERS else self._fixed(kind, *rest)

    def _fixed(self, kind: str, name: Any, *value: Any) -> Any:
        match kind:
            case "enum":
                return _ENUMS[name](*value)
            case "range":
                return range(name, *value)
            case "rule":
                return _RULES[name]
            case _:
                raise SnapshotError(f"unknown kind {kind!r}")

    def _object(self, class_name: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
        cls = _CLASSES[class_name]
        if names != _layout(cls):
            raise SnapshotError(f"{class_name} has other attributes in this version")
        made: Any = object.__new__(cls)
        self._met.append(made)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, self.value(value))
        return made

    def _container(self, kind: str, items: list[Any]) -> Any:
        made: Any = _MAKERS[kind]()
        self._met.append(made)
        values = [item if type(item) in _SCALARS else self.value(item) for item in items]
        if isinstance(made, dict):
            pairs = iter(values)
            dict.update(made, zip(pairs, pairs, strict=True))  # a Counter would count the pairs
        else:
            made.extend(values)
        return made


@cache
def _layout(cls: type) -> tuple[str, ...]:
    """The attributes that objects of a class have in this version: fields, or what one in a new scheduler has."""
    if is_dataclass(cls):
        return tuple(sorted([field.name for field in fields(cls)]))
    new = Scheduler(Limits(max_slots=1, token_budget=1, prefill_chunk=1), preset("tutorial"))
    freezer = _Freezer()
    freezer.value(new)
    return next(_attributes(part) for part in freezer.kept if type(part) is cls)


def _attributes(value: Any) -> tuple[str, ...]:
    """The names of all that ``value`` holds, in a fixed order."""
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    names = [name for name in slots if hasattr(value, name)]
    return tuple(sorted([*names, *getattr(value, "__dict__", ())]))
