"""What waited in the queue, as the doors' logs tell it.

The logs of all gateways are merged by the numbers of the acts: what is told of each is what it found. What waits stands
by its score, equal scores by their offers; what was put back keeps its score. (Whose turn it is within a class is the
store's own matter: ahead of a request may stand some that are given out after it.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from admission.queue import REFUSALS, Offered, Withdrawn
from admission.record.clocks import Clocks
from admission.record.entries import Forgot, Given, LogEntry, OfferMade, Returned, Settled, Withdrew
from admission.record.names import MOST_NAMES

FEW_OTHERS = MOST_NAMES + 1
"""That many can be named; each offer to a long queue would take as long as the queue is."""

NEW_STORE = 1_000_000
"""Numbers go up by one. A new store, or one that has lost its data, begins with its time in microseconds: more than so
much above. Acts that no log has, as claims that were given nothing, are far fewer between two that are recorded."""

Act = OfferMade | Given | Returned | Settled | Withdrew | Forgot


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMoment:
    """One act and what it changed. ``at_us`` is on the clock that all logs share.

    ``joined`` and ``left`` are the sequences that wait from now on, and no longer. An offer met ``num_others``, of whom
    ``others`` are the best few: those that stood better when it was queued, all when it was refused.
    """

    act: Act
    at_us: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    num_others: int = 0


def queues(doors: Sequence[Sequence[LogEntry]], clocks: Clocks) -> Iterator[Iterator[QueueMoment]]:
    """The queue of each model, act by act."""
    acts: dict[str, list[tuple[int, Act]]] = {}
    for door in doors:
        offset_us = clocks.offset_us(door)
        for entry in door:
            if isinstance(entry, Act):
                acts.setdefault(entry.model, []).append((entry.now_us + offset_us, entry))
    for model in sorted(acts):
        yield _follow(sorted(acts[model], key=lambda timed: place_of(timed[1])))


def place_of(act: Act) -> tuple[int, bool]:
    """An offer that was refused changed nothing: it has the number of the act before it."""
    return act.act, isinstance(act, OfferMade) and act.outcome in REFUSALS


def begins_anew(one: Act, other: Act) -> bool:
    """Whether the queue of ``other``, the next one in a log, is no longer that of ``one``, but empty."""
    return other.act - one.act > NEW_STORE


def _follow(acts: Iterable[tuple[int, Act]]) -> Iterator[QueueMoment]:
    line, before = WaitingLine(), None
    for at_us, act in acts:
        lost: tuple[str, ...] = ()
        if before is not None and begins_anew(before, act):
            lost, line = line.all_waiting(), WaitingLine()
        moment = line.take(act, at_us)
        yield replace(moment, left=(*lost, *moment.left)) if lost else moment
        before = act


class WaitingLine:
    """Follows the acts on one queue, one after the other."""

    def __init__(self) -> None:
        self._line: list[tuple[int, int, str]] = []  # score, number of the offer, sequence
        self._places: dict[str, tuple[int, int, str]] = {}  # of what waits or may be put back
        self._waiting: dict[str, None] = {}

    def take(self, act: Act, at_us: int) -> QueueMoment:
        joined: list[str] = []
        left: list[str] = []
        others: tuple[str, ...] = ()
        num_others = 0
        match act:
            case OfferMade():
                left = [shed for shed in act.shed if self._forget(shed)]
                is_new = (
                    act.sequence_id not in self._places
                )  # else the reply to its offer was lost, and it was repeated
                num_others = self._num_met(act, at_us)
                others = tuple([name for *_, name in self._line[: min(num_others, FEW_OTHERS)]])
                if act.outcome is Offered.QUEUED and is_new and self._join(act.sequence_id):
                    joined = [act.sequence_id]
            case Given():
                left = [name for name in act.sequence_ids if self._leave(name)]
                joined = [victim for victim in act.victims if victim and self._join(victim)]
            case Returned():
                joined = [name for name in act.sequence_ids if self._join(name)]
            case Forgot():
                joined = [name for name in act.waiting if self._join(name)]
            case Settled():
                left = [name for name in act.sequence_ids if self._forget(name)]
            case Withdrew() if act.outcome is Withdrawn.WITHDRAWN:
                left = [act.sequence_id] if self._forget(act.sequence_id) else []
        return QueueMoment(
            act=act, at_us=at_us, joined=tuple(joined), left=tuple(left), others=others, num_others=num_others
        )

    def all_waiting(self) -> tuple[str, ...]:
        return tuple(self._waiting)

    def _num_met(self, offer: OfferMade, at_us: int) -> int:
        """Of the first in the line. Also gives the offer its place; one that was refused gets none."""
        if offer.outcome in REFUSALS:
            return len(self._line)
        place = (offer.standing.score(at_us), offer.act, offer.sequence_id)
        place = self._places.setdefault(offer.sequence_id, place)
        return bisect_left(self._line, place) if offer.outcome is Offered.QUEUED else 0

    def _join(self, name: str) -> bool:
        """Whether it did not wait before. One that was offered before the logs begin stands first."""
        if name in self._waiting:
            return False
        self._waiting[name] = None
        insort(self._line, self._places.setdefault(name, (0, 0, name)))
        return True

    def _leave(self, name: str) -> bool:
        """Whether it did wait."""
        if name not in self._waiting:
            return False
        del self._waiting[name]
        del self._line[bisect_left(self._line, self._places[name])]
        return True

    def _forget(self, name: str) -> bool:
        """As ``_leave``, and it will not be put back."""
        waited = self._leave(name)
        self._places.pop(name, None)
        return waited
