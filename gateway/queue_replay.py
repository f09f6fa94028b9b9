"""The part of ``sluicegate replay`` that puts the doors' acts through the queue rule again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from admission.queue import ClassRule
from admission.record.entries import DoorOpened, TimeUnit
from admission.record.queue_check import QueueChecked, check_queue, in_order
from gateway.log_files import Segment
from gateway.log_stories import entries_of
from gateway.what_if_setup import models_of

MOST_TOLD = 5
"""Differences that are printed: those that follow are mostly what comes of the first."""


def check_queues(doors: Sequence[Sequence[Segment]]) -> tuple[bool, list[str]]:
    """Whether every act on every queue came out the same, and what to say of it."""
    logs = [entries_of(door) for door in doors]
    openings = [door[0].opened for door in doors]
    missing = _missing(doors)
    if missing:
        return True, [f"queue: not checked: {missing}"]
    opened = next(opening for opening in openings if isinstance(opening, DoorOpened))
    rules = {cls.name: ClassRule.of(cls) for cls in opened.classes}
    is_same, lines = True, list[str]()
    for model in models_of(logs):
        checked = check_queue(in_order(logs, model), opened.bounds, rules)
        is_same = is_same and (not checked.differences or _is_excused(checked))
        lines += _told(model, checked)
    return is_same, lines


def _missing(doors: Sequence[Sequence[Segment]]) -> str:
    """Why what the queue held is not known; empty: the logs are whole, from the start."""
    if not doors:
        return "there is no door's log in these files"
    for door in doors:
        for expected, segment in enumerate(door):
            opened = segment.opened
            if isinstance(opened, DoorOpened) and opened.unit is TimeUnit.ITERATIONS:
                return "a scenario has a queue of its own"
            if not isinstance(opened, DoorOpened) or opened.segment != expected or not opened.is_whole:
                return f"{segment.path.name} does not follow what is there, and what it held then is not known"
    return ""


def _is_excused(checked: QueueChecked) -> bool:
    """Something took part that no log has."""
    return checked.first_loss is not None or checked.strangers > 0


def _told(model: str, checked: QueueChecked) -> Iterator[str]:
    if not checked.differences:
        yield f"queue of {model}: all is the same in {checked.acts:,} acts, with what waits after each"
        yield f"  {checked.offers:,} offers and {checked.exchanges:,} exchanges"
    elif _is_excused(checked):
        yield f"queue of {model}: {len(checked.differences):,} differences, which need not be the rule's:"
    else:
        yield f"queue of {model}: {len(checked.differences):,} differences"
    if not _is_excused(checked):
        for difference in checked.differences[:MOST_TOLD]:
            yield f"  act {difference.act}, {difference.field} of {difference.sequence_id}:"
            yield f"    recorded: {difference.logged!r}"
            yield f"    replayed: {difference.replayed!r}"
    if checked.first_loss is not None:
        yield f"  act {checked.first_loss} offers again what was lost; what a reaper put back then is not recorded"
    if checked.strangers:
        yield f"  {checked.strangers:,} acts are on entries whose offer is in none of these logs"
    yield (
        f"  {checked.claims:,} claims taken as recorded, as the room that drivers had is not;"
        f" {checked.claims_passing:,} of them passed something better"
    )
