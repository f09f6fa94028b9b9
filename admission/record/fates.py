"""What became of every request of some logs: told by the doors that offered it and the drivers that ran it.

A *request* is one sequence here: the choices of one client request are counted one by one, and what was offered again
after its worker was lost is the same one. It *arrives* when it is offered to the queue; its tokens are there when the
report of their iteration is. Logs of a simulation are read in the very same way, so that what would have happened is
measured as what did happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from admission.events import EndReason
from admission.queue import REFUSALS
from admission.record.course import Course, Path
from admission.record.entries import Answered, LogEntry, OfferMade

COMPLETED = "completed"
SHED = "shed"
UNFINISHED = "unfinished"
"""The logs end before it does."""


@dataclass(slots=True, kw_only=True)
class Fate:
    """``outcome`` is COMPLETED, UNFINISHED, or the reason why there is no whole answer; ``ended_us`` of an answer.

    ``tokens_us``: when each token was there, an eos included.
    """

    offer: OfferMade
    arrival_us: int
    outcome: str = UNFINISHED
    ended_us: int | None = None
    tokens_us: list[int] = field(default_factory=list)
    block_hashes: tuple[bytes, ...] = ()
    slot_preemptions: int = 0
    kv_preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """``offered``: by arrival. ``refused``: what never came to the queue, by the answer to its client."""

    offered: tuple[Fate, ...]
    refused: tuple[Answered, ...]


def read_fates(doors: Sequence[tuple[Iterable[LogEntry], int]], courses: Iterable[Course]) -> Fates:
    """Of the records of each door, with what makes its times those that all logs share, and the drivers' courses."""
    reader = _Reader()
    for entries, offset_us in doors:
        for entry in entries:
            reader.take(entry, offset_us)
    return reader.fates([path for course in courses for path in course.paths.values()])


class _Reader:
    """Collects what the doors said, then what the drivers did."""

    def __init__(self) -> None:
        self._fates: dict[tuple[str, int], Fate] = {}  # by request and choice
        self._of_sequence: dict[str, Fate] = {}
        self._shed: list[str] = []
        self._answers: dict[str, tuple[Answered, int]] = {}

    def take(self, entry: LogEntry, offset_us: int) -> None:
        match entry:
            case OfferMade():
                key = (entry.request_id, entry.choice)
                fate = self._fates.get(key)
                if fate is None or entry.now_us + offset_us < fate.arrival_us:
                    fate = self._fates[key] = Fate(offer=entry, arrival_us=entry.now_us + offset_us)
                self._of_sequence[entry.sequence_id] = fate
                self._shed += entry.shed
            case Answered():
                self._answers[entry.request_id] = entry, entry.now_us + offset_us

    def fates(self, paths: Iterable[Path]) -> Fates:
        for path in paths:
            fate = self._of_sequence.get(path.spec.sequence_id)
            if fate is not None:
                _run(fate, path)
        for sequence_id in self._shed:
            if (fate := self._of_sequence.get(sequence_id)) is not None:
                fate.outcome = SHED
        for fate in self._fates.values():
            self._end(fate)
        offered = {fate.offer.request_id for fate in self._fates.values()}
        ordered = sorted(self._fates.values(), key=lambda fate: (fate.arrival_us, fate.offer.act, fate.offer.choice))
        refused = [answer for answer, _ in self._answers.values() if answer.request_id not in offered]
        return Fates(offered=tuple(ordered), refused=tuple(refused))

    def _end(self, fate: Fate) -> None:
        answer, answered_us = self._answers.get(fate.offer.request_id, (None, None))
        if fate.offer.outcome in REFUSALS:
            fate.outcome = fate.offer.outcome.value
        elif fate.outcome == UNFINISHED and answer is not None:
            fate.outcome, fate.ended_us = answer.outcome, answered_us
        if fate.outcome == COMPLETED and fate.tokens_us:
            fate.ended_us = fate.tokens_us[-1]


def _run(fate: Fate, path: Path) -> None:
    fate.tokens_us = sorted([*fate.tokens_us, *path.tokens_us])
    fate.block_hashes = path.spec.block_hashes
    fate.slot_preemptions += path.slot_preemptions
    fate.kv_preemptions += path.kv_preemptions
    if path.end in {EndReason.STOP, EndReason.LENGTH}:
        fate.outcome = COMPLETED
