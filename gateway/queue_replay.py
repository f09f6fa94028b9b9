"""The part of ``sluicegate replay`` that puts the doors' acts through the queue rule again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from admission.queue import ClassRule
from admission.record.entries import DoorOpened, LogEntry, TimeUnit
from admission.record.queue_check import QueueChecked, by_store, check_queue, in_order
from admission.record.sentences import counted
from gateway.log_files import Logs, Segment
from gateway.log_stories import entries_of
from gateway.what_if_setup import models_of

MOST_TOLD = 5
"""Differences that are printed: those that follow are mostly what comes of the first."""


def check_queues(logs: Logs) -> tuple[bool, list[str]]:
    """Whether every act on every queue came out the same, and what to say of it."""
    missing = _missing(logs)
    if missing:
        return True, [f"queue: not checked: {missing}"]
    doors = [entries_of(door) for door in logs.doors]
    opened = next(entry for entries in doors for entry in entries if isinstance(entry, DoorOpened))
    rules = {cls.name: ClassRule.of(cls) for cls in opened.classes}
    is_same, lines = True, list[str]()
    for model in models_of(doors):
        ends = list(_ends(logs.doors, doors, model))
        for number, acts in enumerate(by_store(in_order(doors, model))):
            end = min([each for each in ends if acts[0].act <= each.act <= acts[-1].act], default=None)
            known = acts if end is None else [act for act in acts if act.act <= end.act]
            checked = check_queue(known, opened.bounds, rules)
            is_same = is_same and (not checked.differences or _is_excused(checked))
            lines += _told(f"queue of {model}" if number == 0 else f"queue of {model}, in a new store", checked)
            if end is not None:
                lines.append(f"  as far as {end.log} goes: what its gateway did then is not known")
    return is_same, lines


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _End:
    """A door's log that ends without its end has ``act`` as its last."""

    act: int
    log: str


def _ends(doors: Sequence[Sequence[Segment]], entries: Sequence[Sequence[LogEntry]], model: str) -> Iterator[_End]:
    for segments, records in zip(doors, entries, strict=True):
        acts = in_order([records], model)
        if acts and not segments[-1].is_last:
            yield _End(act=acts[-1].act, log=segments[-1].path.name)


def _missing(logs: Logs) -> str:
    """Why what the queue held is not known; empty: the logs are whole, from the start."""
    gateways: set[str] = set()
    for door in logs.doors:
        for expected, segment in enumerate(door):
            opened = segment.opened
            if isinstance(opened, DoorOpened) and opened.unit is TimeUnit.ITERATIONS:
                return "a scenario has a queue of its own"
            follows = opened.segment == expected and opened.is_whole
            if not follows or (expected > 0 and door[expected - 1].is_cut):
                return f"{segment.path.name} does not follow what is there, and what it held then is not known"
            gateways.add(opened.gateway_id)
    if not gateways:
        return "there is no door's log in these files"
    for driver in logs.drivers:
        if driver[0].opened.gateway_id not in gateways:
            return f"there is no log of the door of {driver[0].opened.gateway_id} in these files"
    return ""


def _is_excused(checked: QueueChecked) -> bool:
    """Something took part that no log has."""
    return checked.strangers > 0


def _told(queue: str, checked: QueueChecked) -> Iterator[str]:
    if not checked.differences:
        yield f"{queue}: all is the same in {counted(checked.acts, 'act')}, with what waits after each"
        yield f"  {counted(checked.offers, 'offer')} and {counted(checked.exchanges, 'exchange')}"
    elif _is_excused(checked):
        yield f"{queue}: {counted(len(checked.differences), 'difference')}, which need not be the rule's:"
    else:
        yield f"{queue}: {counted(len(checked.differences), 'difference')}"
    if not _is_excused(checked):
        for difference in checked.differences[:MOST_TOLD]:
            yield f"  act {difference.act}, {difference.field} of {difference.sequence_id}:"
            yield f"    recorded: {difference.logged!r}"
            yield f"    replayed: {difference.replayed!r}"
    if checked.strangers:
        yield f"  {counted(checked.strangers, 'time')} an act was on an entry whose offer is in none of these logs"
    yield (
        f"  {counted(checked.claims, 'claim')} taken as recorded, as the room that drivers had is not;"
        f" {checked.claims_passing:,} of them passed something better"
    )
