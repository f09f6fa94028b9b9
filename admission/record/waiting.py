"""What waited in the queue, as the doors' logs tell it.

The logs of all gateways are merged by the numbers of the acts. What waits stands by its score, equal scores by their
offers; what was put back keeps its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from admission.queue import Offered
from admission.record.entries import Given, LogEntry, OfferMade, Returned, Settled, Withdrew

REFUSED = (Offered.QUEUE_FULL, Offered.QUEUE_TOKENS_FULL, Offered.CLASS_FULL)

Act = OfferMade | Given | Returned | Settled | Withdrew


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMoment:
    """The queue after ``act``: sequence ids, the best first. ``ahead``: of an offer, who stood better."""

    act: Act
    waiting: tuple[str, ...]
    ahead: tuple[str, ...] = ()


def merge(doors: Sequence[Iterable[LogEntry]]) -> Iterator[Act]:
    """The acts of several doors on one queue. A door writes down what it is told, which may be out of order."""
    acts = [entry for door in doors for entry in door if isinstance(entry, Act)]
    return iter(sorted(acts, key=_place_of))


def _place_of(act: Act) -> tuple[int, bool]:
    """An offer that was refused changed nothing: it has the number of the act before it."""
    return act.act, isinstance(act, OfferMade) and act.outcome in REFUSED


class WaitingLine:
    """Follows the acts, one after the other."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}  # of every sequence that is known: score, number of its offer
        self._waiting: dict[str, None] = {}

    def take(self, act: Act) -> QueueMoment:
        ahead: tuple[str, ...] = ()
        match act:
            case OfferMade():
                self._places[act.sequence_id] = (act.standing.score(act.now_us), act.act)
                for shed in act.shed:
                    self._forget(shed)
                ahead = self._ahead_of(act.sequence_id)
                if act.outcome is Offered.QUEUED:
                    self._waiting[act.sequence_id] = None
            case Given():
                for sequence_id in act.sequence_ids:
                    self._waiting.pop(sequence_id, None)
                self._put_back([victim for victim in act.victims if victim])
            case Returned():
                self._put_back(act.sequence_ids)
            case Settled():
                for sequence_id in act.sequence_ids:
                    self._forget(sequence_id)
            case Withdrew():
                self._forget(act.sequence_id)
        return QueueMoment(act=act, waiting=tuple(sorted(self._waiting, key=self._place)), ahead=ahead)

    def _ahead_of(self, sequence_id: str) -> tuple[str, ...]:
        place = self._place(sequence_id)
        return tuple(sorted([other for other in self._waiting if self._place(other) < place], key=self._place))

    def _put_back(self, sequence_ids: Iterable[str]) -> None:
        self._waiting.update(dict.fromkeys(sequence_ids))

    def _forget(self, sequence_id: str) -> None:
        self._waiting.pop(sequence_id, None)
        self._places.pop(sequence_id, None)

    def _place(self, sequence_id: str) -> tuple[int, int]:
        return self._places.get(sequence_id, (0, 0))


def queues(doors: Sequence[Iterable[LogEntry]]) -> Iterator[list[QueueMoment]]:
    """The queue of each model, act by act."""
    known = [list(door) for door in doors]
    for model in sorted({entry.model for door in known for entry in door if isinstance(entry, OfferMade)}):
        line = WaitingLine()
        acts = merge([[entry for entry in door if getattr(entry, "model", None) == model] for door in known])
        yield [line.take(act) for act in acts]
