"""The queue rule in memory: pure and synchronous, for the simulator and as the reference that Redis is held to.

The rules:

* What is offered takes its place in the lines first. What a live standing want would then be given of it is handed over
  (``handing``). The rest stays within the bounds, or all of it is refused and leaves no trace. The bounds of its class
  come first; when the queue's are full and its class may shed, the worst entries of lower classes that may be shed
  leave for it, as few as make room, or none.
* A claim takes one entry after the other while slots and KV room last; first of the classes that have fewer slots there
  than they are guaranteed, as long as they are short, then of all. One that does not fit is passed over, at most
  ``max_passes`` times by all drivers together until it is given out; then nobody takes another ahead of it for want of
  room, so nothing starves. What was asked for and not given stands as the driver's want.
* When the very first entry has no slot or no room, a claim may exchange: the entry goes to the driver and the driver's
  weakest sequence into the driver's line, if the entry is better by class *and* by score, and fits then. What waits
  does not change in number. An exchange ends the claim and the want: what room is left, the driver must say.
* An entry is charged to its account once, when it is first given out. One that comes back is not charged again, but
  counts passes anew.
* Whenever the lines change, every driver whose claim would now give it something is woken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from admission.bounds import room_for
from admission.handing import hand_over
from admission.items import Item, Place
from admission.keys import WANT_LEASE_US
from admission.lines import Lines
from admission.marks import Ending, Marks
from admission.queue import (
    NO_CLASS_RULE,
    Asked,
    Claim,
    ClassRule,
    Entry,
    Offered,
    OfferResult,
    QueueBounds,
    QueueStats,
    Shed,
    Withdrawal,
    Withdrawn,
    check_group,
)
from admission.wants import NOTHING_ASSUMED, Assumed, Choice, StandingWant, Terms, choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How the rule sees what a log says was given: how many better ones it passed, whether it may take that victim."""

    num_passed: int
    may_exchange: bool


_RoomFor = Callable[[Sequence[Item], Sequence[Item]], tuple[Item, ...] | Offered]


class MemoryQueue:
    """The acts of ``admission.queue`` on a queue in memory. ``now_us`` must not go back from act to act."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._lines = Lines()
        self._items: dict[str, Item] = {}
        self._marks = Marks()
        self._wants: dict[str, StandingWant] = {}
        self._handed: dict[str, list[str]] = {}  # per driver, since its last call
        self._woken: dict[str, None] = {}
        self._last_number = 0

    # --- for origins --------------------------------------------------------------------------------------------------

    def offer(self, entry: Entry, now_us: int, rule: ClassRule = NO_CLASS_RULE) -> OfferResult:
        """Hand ``entry`` to a standing want, or queue it, shedding others if need be, or say which bound is full."""
        return self.offer_group((entry,), now_us, rule)

    def offer_group(self, entries: Sequence[Entry], now_us: int, rule: ClassRule = NO_CLASS_RULE) -> OfferResult:
        """As ``offer``, for all of ``entries`` or none. Raises ``ValueError`` when they are no group."""
        check_group(entries)
        return self._offer(
            entries,
            now_us,
            rule,
            lambda waiting, handed: room_for(waiting, handed, self._lines, self._bounds, rule),
        )

    def offer_past_bounds(self, entry: Entry, now_us: int, rule: ClassRule = NO_CLASS_RULE) -> OfferResult:
        """As ``offer`` for what had started and was lost (a forced return): past the bounds, and never shed."""
        return self._offer((entry,), now_us, rule.past_bounds(), lambda *_: ())

    def _offer(self, entries: Sequence[Entry], now_us: int, rule: ClassRule, room_for_rest: _RoomFor) -> OfferResult:
        self._marks.forget(now_us)
        known = [self._items.get(entry.entry_id) or self._marks.get(entry.entry_id) for entry in entries]
        if any(known):
            outcomes = [Offered.WITHDRAWN if one is None else one.answer for one in known]
            return self._answer(entries, outcomes, () if known[0] is None else known[0].shed)
        group = [self._arrive(entry, rule, now_us) for entry in entries]
        handing = hand_over(group, self._live_wants(now_us), self._choose)
        handed = [choice.item for _, choice in handing.rows]
        room = room_for_rest([item for item in group if item not in handed], handed)
        if isinstance(room, Offered):
            for item in group:
                self._lines.leave(item)
                del self._items[item.entry.entry_id]
            return self._answer(entries, [room] * len(entries))
        self._wants |= handing.wants
        for driver_id, choice in handing.rows:
            self._give(choice, driver_id, Place.HANDED)
            choice.item.answer = Offered.HANDED
            self._handed.setdefault(driver_id, []).append(choice.item.entry.entry_id)
            self._woken[driver_id] = None
        group[0].shed = self._shed(room, now_us)
        self._wake_claimants()
        return self._answer(entries, [item.answer for item in group], group[0].shed)

    def withdraw(self, entry_id: str, now_us: int) -> Withdrawal:
        """Take an entry out; one that a driver has stays with it, but never goes back into a line."""
        self._marks.forget(now_us)
        item = self._items.get(entry_id)
        if item is None:
            mark = self._marks.get(entry_id)
            if mark is None:
                self._marks.add(entry_id, Offered.WITHDRAWN, Ending.UNKNOWN, now_us)
            withdrawn = mark is not None and mark.ending is Ending.WITHDRAWN
            return Withdrawal(outcome=Withdrawn.WITHDRAWN if withdrawn else Withdrawn.UNKNOWN)
        if not item.is_in_line:
            item.cancelled = True
            return Withdrawal(outcome=Withdrawn.CLAIMED, driver_id=item.driver_id)
        self._finish(item, Ending.WITHDRAWN, now_us)
        self._wake_claimants()
        return Withdrawal(outcome=Withdrawn.WITHDRAWN, driver_id=item.driver_id)

    def stats(self) -> QueueStats:
        return self._lines.stats()

    # --- for drivers --------------------------------------------------------------------------------------------------

    def claim(self, driver_id: str, asked: Asked, now_us: int) -> tuple[Claim, ...]:
        """The best entries for ``asked``, after what was handed over and not yet collected."""
        claims = self._collect(driver_id, now_us)
        want = StandingWant(
            slots=asked.slots,
            kv_tokens=asked.kv_tokens,
            weakest=None if claims else asked.weakest,
            expires_us=now_us + WANT_LEASE_US,
            short={name: slots for name, slots in asked.short if slots > 0},
        )
        for claim in claims:
            want.take(claim.entry)
        while choice := self._choose(driver_id, want):
            claims.append(self._give(choice, driver_id, Place.HELD))
            want.take(choice.item.entry)
            if choice.victim is not None:
                self._lines.join(choice.victim, pinned_to=driver_id)
                want.end()
        self._wants[driver_id] = want
        self._woken.pop(driver_id, None)
        self._wake_claimants()
        return tuple(claims)

    def next_handed(self, driver_id: str, now_us: int) -> tuple[Claim, ...]:
        """What was handed to the driver since its last call; when that is nothing, its wake-up is taken.

        Its want lives on.
        """
        if driver_id in self._wants:
            self._wants[driver_id].expires_us = now_us + WANT_LEASE_US
        claims = self._collect(driver_id, now_us)
        if not claims:
            self._woken.pop(driver_id, None)
        return tuple(claims)

    def is_woken(self, driver_id: str) -> bool:
        """Whether the driver should collect or claim again."""
        return driver_id in self._woken

    def settle(self, driver_id: str, entry_ids: Iterable[str], now_us: int) -> None:
        """These sequences of the driver have ended. Ids that it does not have change nothing."""
        for item in self._owned(driver_id, entry_ids):
            self._finish(item, Ending.SETTLED, now_us)
        self._wake_claimants()

    def give_back(self, driver_id: str, entry_ids: Iterable[str], now_us: int) -> None:
        """The driver had to pause these: into its own line, past the bounds if need be. Its standing want ends."""
        self._wants.pop(driver_id, None)
        for item in self._owned(driver_id, entry_ids):
            if item.place is not Place.PAUSED:
                self._put_back(item, now_us, pinned_to=driver_id)

    def forget_driver(self, driver_id: str, now_us: int) -> None:
        """What the driver received is lost; what it did not, and what it had paused, goes to the shared line."""
        for item in self._owned(driver_id, list(self._items)):
            if item.place is Place.HELD:
                self._finish(item, Ending.LOST, now_us)
            else:
                self._put_back(item, now_us, pinned_to=None)
        self._wants.pop(driver_id, None)
        self._handed.pop(driver_id, None)
        self._woken.pop(driver_id, None)
        self._wake_claimants()

    # --- for those who follow a log -----------------------------------------------------------------------------------

    def hand_as_told(self, entry_id: str) -> None:
        """An entry that waits was handed over to somebody: it leaves the lines, and ``give_as_told`` says to whom."""
        item = self._items[entry_id]
        self._lines.give(item)
        item.place, item.answer = Place.HANDED, Offered.HANDED

    def give_as_told(self, driver_id: str, entry_id: str, victim_id: str | None) -> Told:
        """The driver was given this entry, in exchange for ``victim_id`` if that is not None, whatever it asked for."""
        item = self._items.get(entry_id)
        if item is None:
            return Told(num_passed=0, may_exchange=False)
        num_passed = 0
        if item.is_in_line:
            ahead = takewhile(lambda other: other is not item, self._lines.in_order_for(driver_id))
            num_passed = sum(1 for _ in ahead)
            self._lines.give(item)
        item.place, item.driver_id = Place.HELD, driver_id
        victim = None if victim_id is None else self._items.get(victim_id)
        if victim is None or victim.place is not Place.HELD:
            return Told(num_passed=num_passed, may_exchange=False)
        self._lines.join(victim, pinned_to=driver_id)
        is_better = item.entry.rank < victim.entry.rank and item.score < victim.score
        return Told(num_passed=num_passed, may_exchange=item.preempts and is_better)

    def forget_as_told(self, driver_id: str, waiting: Iterable[str], now_us: int) -> None:
        """As ``forget_driver``; what of it waits for others is told, as nobody told what the driver had received."""
        for item in [self._items[entry_id] for entry_id in waiting if entry_id in self._items]:
            self._put_back(item, now_us, pinned_to=None)
        for item in self._owned(driver_id, list(self._items)):
            self._finish(item, Ending.LOST, now_us)

    # --- rules --------------------------------------------------------------------------------------------------------

    def _arrive(self, entry: Entry, rule: ClassRule, now_us: int) -> Item:
        self._last_number += 1
        item = Item(
            entry=entry,
            arrival_us=now_us,
            score=entry.standing.score(now_us),
            number=self._last_number,
            answer=Offered.QUEUED,
            may_be_shed=rule.may_be_shed,
            preempts=rule.preempts,
            is_charged=rule.is_charged,
        )
        self._items[entry.entry_id] = item
        self._lines.join(item, pinned_to=None)
        return item

    def _shed(self, items: Iterable[Item], now_us: int) -> tuple[Shed, ...]:
        shed = []
        for item in items:
            item.answer = Offered.SHED
            self._finish(item, Ending.SHED, now_us)
            shed.append(Shed(entry_id=item.entry.entry_id, origin=item.entry.origin))
        return tuple(shed)

    def _live_wants(self, now_us: int) -> dict[str, StandingWant]:
        """Copies of the wants that offers may meet now."""
        return {
            driver_id: replace(want, short=dict(want.short))
            for driver_id, want in self._wants.items()
            if want.expires_us > now_us
        }

    def _choose(self, driver_id: str, want: StandingWant, assumed: Assumed = NOTHING_ASSUMED) -> Choice | None:
        """What a claim of the driver would be given next."""
        victim = self._items.get(want.weakest.sequence_id) if want.weakest else None
        if victim and (victim.place is not Place.HELD or victim.driver_id != driver_id or victim.cancelled):
            victim = None
        terms = Terms(victim=victim, max_passes=self._bounds.max_passes, assumed=assumed)
        return choose(self._lines, driver_id, want, terms)

    def _wake_claimants(self) -> None:
        for driver_id, want in self._wants.items():
            if self._choose(driver_id, want):
                self._woken[driver_id] = None

    # --- entries ------------------------------------------------------------------------------------------------------

    def _answer(
        self, entries: Iterable[Entry], outcomes: Iterable[Offered], shed: tuple[Shed, ...] = ()
    ) -> OfferResult:
        items = [self._items.get(entry.entry_id) for entry in entries]
        waiting = [item for item in items if item is not None and item.place is Place.WAITING]
        return OfferResult(
            outcomes=tuple(outcomes),
            position=self._lines.num_ahead(waiting[0]) if waiting else 0,
            waiting_requests=len(self._lines),
            waiting_tokens=self._lines.num_tokens,
            shed=shed,
        )

    def _owned(self, driver_id: str, entry_ids: Iterable[str]) -> list[Item]:
        found = (self._items.get(entry_id) for entry_id in dict.fromkeys(entry_ids))
        return [item for item in found if item is not None and item.driver_id == driver_id]

    def _collect(self, driver_id: str, now_us: int) -> list[Claim]:
        claims = []
        for item in self._owned(driver_id, self._handed.pop(driver_id, [])):
            if item.place is not Place.HANDED:  # given back before it was collected
                continue
            if item.cancelled:
                self._finish(item, Ending.WITHDRAWN, now_us)
            else:
                item.place = Place.HELD
                claims.append(item.claim())
        return claims

    def _give(self, choice: Choice, driver_id: str, place: Place) -> Claim:
        for passed in choice.passed:
            passed.passes += 1
        item = choice.item
        self._lines.give(item)
        item.place, item.driver_id = place, driver_id
        return item.claim(victim_id=choice.victim.entry.entry_id if choice.victim else None)

    def _put_back(self, item: Item, now_us: int, *, pinned_to: str | None) -> None:
        if item.cancelled:
            self._finish(item, Ending.WITHDRAWN, now_us)
            return
        if item.is_in_line:
            self._lines.leave(item)
        self._lines.join(item, pinned_to=pinned_to)

    def _finish(self, item: Item, ending: Ending, now_us: int) -> None:
        if item.is_in_line:
            self._lines.leave(item)
        del self._items[item.entry.entry_id]
        self._marks.add(item.entry.entry_id, item.answer, ending, now_us, shed=item.shed)
