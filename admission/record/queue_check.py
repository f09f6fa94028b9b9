"""The doors' acts through the queue rule again: every offer must come out as it did.

The acts of all gateways on one queue, in the order of their numbers, go through ``MemoryQueue``. Of each offer that
takes its outcome, what it displaced, and what waits after it are held against the log; of each exchange, that it was
allowed. Two things are taken from the log instead, as they hang on what drivers wanted at that moment, which is not
recorded: which entries a claim was given, of which is counted how often a better one was passed over (it may not have
fitted, or others were short of their share), and which ones were handed to a standing want.

What cannot be followed is counted: entries from before the log begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from admission.memory_queue import MemoryQueue
from admission.queue import (
    NO_CLASS_RULE,
    REFUSALS,
    ClassRule,
    Entry,
    Offered,
    OfferResult,
    QueueBounds,
)
from admission.record.entries import Forgot, Given, LogEntry, OfferMade, Returned, Settled, Withdrew
from admission.record.waiting import Act, begins_anew, place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDifference:
    """Act ``act`` came out otherwise: ``field`` of the offer, or of the exchange, of ``sequence_id``."""

    act: int
    sequence_id: str
    field: str
    logged: object
    replayed: object


@dataclass(slots=True, kw_only=True)
class QueueChecked:
    """What was checked, what differs, and what could not be followed.

    ``claims_passing``: claims of ``claims`` that went past something better. ``strangers``: entries that were acted
    upon and never offered, so the log does not begin with an empty queue.
    """

    acts: int = 0
    offers: int = 0
    claims: int = 0
    claims_passing: int = 0
    exchanges: int = 0
    strangers: int = 0
    differences: list[QueueDifference] = field(default_factory=list)


def check_queue(acts: Iterable[Act], bounds: QueueBounds, rules: Mapping[str, ClassRule]) -> QueueChecked:
    """Replay the acts on one queue, in the order of their numbers; ``rules`` by class."""
    check = _Check(bounds, rules)
    for group in _groups(acts):
        check.take(group)
    return check.checked


def in_order(doors: Iterable[Iterable[LogEntry]], model: str) -> list[Act]:
    """The acts of all doors on the queue of ``model``."""
    acts = [entry for door in doors for entry in door if isinstance(entry, Act) and entry.model == model]
    return sorted(acts, key=place_of)


def by_store(acts: Sequence[Act]) -> list[Sequence[Act]]:
    """Acts in their order, apart where the queue began anew, and was empty."""
    begins = [place + 1 for place, (one, other) in enumerate(pairwise(acts)) if begins_anew(one, other)]
    return [acts[first:last] for first, last in pairwise([0, *begins, len(acts)])]


def _groups(acts: Iterable[Act]) -> Iterator[Sequence[Act]]:
    """The offers of one request, which are one act; all other acts alone."""
    for _, group in groupby(acts, key=lambda act: (act.act, act.request_id if isinstance(act, OfferMade) else None)):
        yield list(group)


class _Check:
    """``_ids`` knows which sequence a choice of a request was offered as."""

    def __init__(self, bounds: QueueBounds, rules: Mapping[str, ClassRule]) -> None:
        self.checked = QueueChecked()
        self._queue = MemoryQueue(bounds)
        self._rules = rules
        self._now_us = 0
        self._ids: dict[tuple[str, int], str] = {}
        self._known: set[str] = set()

    def take(self, group: Sequence[Act]) -> None:
        self.checked.acts += 1
        self._now_us = max(self._now_us, group[0].now_us)
        offers = [act for act in group if isinstance(act, OfferMade)]
        if offers:
            self._offer(offers)
            return
        for act in group:
            match act:
                case Given():
                    self._give(act)
                case Returned():
                    self._note_strangers(act.sequence_ids)
                    self._queue.give_back(act.driver_id, act.sequence_ids, self._now_us)
                case Settled():
                    self._note_strangers(act.sequence_ids)
                    self._queue.settle(act.driver_id, act.sequence_ids, self._now_us)
                case Forgot():
                    self._note_strangers(act.waiting)
                    self._queue.forget_as_told(act.driver_id, act.waiting, self._now_us)
                case Withdrew():
                    withdrawal = self._queue.withdraw(act.sequence_id, self._now_us)
                    self._differ(act, "outcome", act.outcome.value, withdrawal.outcome.value)

    # --- offers -------------------------------------------------------------------------------------------------------

    def _offer(self, offers: Sequence[OfferMade]) -> None:
        rule = self._rules.get(offers[0].class_name, NO_CLASS_RULE)
        is_move = self._is_move(offers)
        self._known.update([offer.sequence_id for offer in offers])
        handed = [offer for offer in offers if offer.outcome is Offered.HANDED]
        rest = [offer for offer in offers if offer.outcome is not Offered.HANDED]
        self.checked.offers += len(offers)
        for offer in handed:  # by whom will be told by the act with which it is given
            self._queue.offer_past_bounds(_entry(offer), self._now_us, rule)
            self._queue.hand_as_told(offer.sequence_id)
        if is_move:
            for offer in rest:
                self._compare(offer, self._queue.offer_past_bounds(_entry(offer), self._now_us, rule), 0)
        elif rest:
            result = self._queue.offer_group([_entry(offer) for offer in rest], self._now_us, rule)
            for number, offer in enumerate(rest):
                self._compare(offer, result, number)
        self._compare_waiting(offers[0])

    def _compare(self, offer: OfferMade, result: OfferResult, number: int) -> None:
        self._differ(offer, "outcome", offer.outcome.value, result.outcomes[number].value)
        if offer.choice == 0:
            self._differ(offer, "shed", offer.shed, tuple([shed.entry_id for shed in result.shed]))

    def _compare_waiting(self, offer: OfferMade) -> None:
        stats = self._queue.stats()
        self._differ(offer, "waiting_requests", offer.waiting_requests, stats.requests)
        self._differ(offer, "waiting_tokens", offer.waiting_tokens, stats.tokens)

    def _is_move(self, offers: Sequence[OfferMade]) -> bool:
        """Whether these go on elsewhere, past the bounds. What the store has forgotten may ask for a place again."""
        befores = [self._ids.setdefault((each.request_id, each.choice), each.sequence_id) for each in offers]
        is_again = befores != [offer.sequence_id for offer in offers] or any(offer.emitted_tokens for offer in offers)
        return is_again and not any(offer.outcome in REFUSALS or offer.shed for offer in offers)

    # --- claims -------------------------------------------------------------------------------------------------------

    def _give(self, given: Given) -> None:
        for sequence_id, victim in zip(given.sequence_ids, given.victims, strict=True):
            if sequence_id not in self._known:
                self.checked.strangers += 1
                continue
            self.checked.claims += 1
            told = self._queue.give_as_told(given.driver_id, sequence_id, victim or None)
            self.checked.claims_passing += told.num_passed > 0
            if victim:
                self.checked.exchanges += 1
                if not told.may_exchange:
                    logged = f"exchanged for {victim}"
                    difference = QueueDifference(
                        act=given.act, sequence_id=sequence_id, field="victim", logged=logged, replayed="not allowed"
                    )
                    self.checked.differences.append(difference)

    def _note_strangers(self, sequence_ids: Iterable[str]) -> None:
        self.checked.strangers += sum(sequence_id not in self._known for sequence_id in sequence_ids)

    def _differ(self, act: OfferMade | Withdrew, name: str, logged: object, replayed: object) -> None:
        if logged != replayed:
            self.checked.differences.append(
                QueueDifference(act=act.act, sequence_id=act.sequence_id, field=name, logged=logged, replayed=replayed)
            )


def _entry(offer: OfferMade) -> Entry:
    return Entry(
        entry_id=offer.sequence_id,
        class_name=offer.class_name,
        rank=offer.rank,
        standing=offer.standing,
        tokens=offer.prompt_tokens + offer.expected_tokens,
        payload=b"",
        tenant=offer.tenant,
    )
