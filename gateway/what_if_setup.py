"""Under what a replay runs: the preset, the limits and the queue that some logs recorded, with what is to be otherwise.

What a gateway would derive from its preset is derived anew when the preset changes: the order of the queue and how
often one may be passed over, unless the logs show that they were set apart from it; the slots of a class that has a
share of them, when the slots change. What a preempted sequence keeps is up to the worker and stays as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from admission.classes import PriorityClass
from admission.cost import CostModel
from admission.limits import Limits
from admission.order import ORDERS
from admission.presets import PRESETS, Preset, Progress, queue_order
from admission.queue import ClassRule, QueueBounds
from admission.record.clocks import Clocks
from admission.record.entries import DoorOpened, LogEntry, OfferMade, Opened, Stepped
from admission.record.snapshot import SnapshotError, thaw
from admission.standing import WaitingOrderName
from admission.trace_setup import TraceSetup
from gateway.log_files import BadLog
from gateway.simulate_errors import OptionError
from gateway.simulate_settings import TRACE_SETTINGS, Setting

SETTINGS: Mapping[str, Setting] = {
    name: setting for name, setting in TRACE_SETTINGS.items() if name not in {"context_length", "max_tokens"}
}
"""What ``--set`` knows here: what a request may ask for is in the log."""

_LIMITS = ("max_slots", "token_budget", "prefill_chunk", "kv_blocks", "block_size", "preferred_sizes")
_RULES = ("watermark_percent", "pause_budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the logs ran under. Several gateways have the same classes and queue; drivers may differ in their limits.

    ``drivers`` were there at once. ``num_logged``: how many there were in all, those that followed others, too.
    """

    preset: Preset
    drivers: tuple[tuple[str, Limits], ...]
    num_logged: int
    classes: tuple[PriorityClass, ...]
    bounds: QueueBounds
    order: WaitingOrderName

    def setup(self, cost: CostModel, preset_name: str | None, changes: Mapping[str, Any]) -> TraceSetup:
        """With another preset (None: the recorded one) and other limits. Raises ``OptionError``."""
        preset, order, max_passes = self.preset, self.order, self.bounds.max_passes
        if preset_name is not None and preset_name != preset.name:
            preset = replace(PRESETS[preset_name], progress=self.preset.progress)
            order = queue_order(preset) if order is queue_order(self.preset) else order
            max_passes = preset.max_passes if max_passes == self.preset.max_passes else max_passes
        order = WaitingOrderName(changes.get("waiting_order", order))
        if "waiting_order" in changes and order.value in ORDERS:
            preset = replace(preset, waiting_order=ORDERS[order.value])
        preset = replace(preset, **{name: changes[name] for name in _RULES if name in changes})
        if "progress" in changes:
            preset = replace(preset, progress=Progress(changes["progress"]))
        drivers = tuple([(name, self._limits(limits, changes)) for name, limits in self.drivers])
        try:
            return TraceSetup(
                preset=preset,
                limits=drivers[0][1],
                cost=cost,
                queue_order=order,
                max_queue=changes.get("max_queue", self.bounds.max_requests),
                queue_tokens=changes.get("queue_tokens", self.bounds.max_tokens),
                max_passes=changes.get("max_passes", max_passes),
                context_length=None,
                max_tokens=None,
                drivers=drivers,
                rules=tuple([(cls.name, ClassRule.of(cls)) for cls in self.classes]),
            )
        except ValueError as error:
            raise OptionError(f"--set: {error}") from None

    def _limits(self, limits: Limits, changes: Mapping[str, Any]) -> Limits:
        changed = replace(limits, **{name: changes[name] for name in _LIMITS if name in changes})
        if "max_queue_delay_ms" in changes:
            changed = replace(changed, max_queue_delay_us=changes["max_queue_delay_ms"] * 1000)
        if changed.max_slots != limits.max_slots:
            shares = [(cls.name, cls.share_percent * changed.max_slots // 100) for cls in self.classes]
            guaranteed = {name for name, _ in limits.guaranteed_slots}
            changed = replace(changed, guaranteed_slots=tuple([share for share in shares if share[0] in guaranteed]))
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Presence:
    """A driver was there from ``begins_us`` to its last step, in times that all logs share."""

    opened: Opened
    begins_us: int
    ends_us: int

    def may_be_followed_by(self, other: _Presence) -> bool:
        """Whether ``other`` may be the same place: that worker driven anew, or another in its stead."""
        is_alike = self.opened.driver_id == other.opened.driver_id or self.opened.limits == other.opened.limits
        return is_alike and self.ends_us <= other.begins_us


def recorded(
    drivers: Sequence[Sequence[LogEntry]], doors: Sequence[Iterable[LogEntry]], model: str, clocks: Clocks
) -> Recorded:
    """What the logs of the drivers and doors of ``model`` ran under. Raises ``BadLog``."""
    places = _at_once([_presence(entries, clocks.offset_us(entries)) for entries in drivers])
    doorways = [entry for entries in doors for entry in entries if isinstance(entry, DoorOpened)]
    if not places or not doorways:
        raise BadLog(f"what would have happened takes the logs of the doors and of the drivers of {model!r}")
    presets = {entry.preset for entries in drivers for entry in entries if isinstance(entry, Opened)}
    if len(presets) > 1:
        raise BadLog(f"these logs ran under several presets: {', '.join(sorted(presets))}")
    first, doorway = places[0], doorways[0]
    try:
        preset = thaw(first.state).preset
    except SnapshotError as error:
        raise BadLog(f"{first.driver_id}: {error}") from None
    return Recorded(
        preset=replace(preset, progress=first.progress),
        drivers=tuple([(opened.driver_id, opened.limits) for opened in places]),
        num_logged=len(drivers),
        classes=doorway.classes,
        bounds=doorway.bounds,
        order=doorway.waiting_order,
    )


def _at_once(drivers: Iterable[_Presence]) -> list[Opened]:
    """The drivers that were there at once, each by the first of those that followed one another in its place.

    A worker that was lost and came back, was taken over by another gateway, or serves the next of several runs, is one.
    """
    places: list[tuple[Opened, _Presence]] = []
    for driver in sorted(drivers, key=lambda each: (each.begins_us, each.opened.driver_id)):
        place = next((i for i, (_, last) in enumerate(places) if last.may_be_followed_by(driver)), len(places))
        places[place : place + 1] = [(places[place][0] if place < len(places) else driver.opened, driver)]
    return sorted([opened for opened, _ in places], key=lambda opened: opened.driver_id)


def _presence(entries: Sequence[LogEntry], offset_us: int) -> _Presence:
    opened = next(entry for entry in entries if isinstance(entry, Opened))
    steps = (entry.now_us for entry in reversed(entries) if isinstance(entry, Stepped))
    ends_us = next(steps, opened.opened_us)
    return _Presence(opened=opened, begins_us=opened.opened_us + offset_us, ends_us=ends_us + offset_us)


def models_of(doors: Sequence[Iterable[LogEntry]]) -> tuple[str, ...]:
    """The models for which something was offered."""
    return tuple(sorted({entry.model for entries in doors for entry in entries if isinstance(entry, OfferMade)}))
