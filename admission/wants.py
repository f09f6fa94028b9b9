"""What drivers want of the queue in memory, and which entry comes next for a want."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from admission.events import Weakest
from admission.items import Item
from admission.lines import Lines
from admission.queue import LOOK_AHEAD, Entry


@dataclass(slots=True, kw_only=True)
class StandingWant:
    """What a driver asked for and did not get yet. Offers meet it until ``expires_us``.

    ``short``: the classes that are short of slots there, and by how many.
    """

    slots: int
    kv_tokens: int | None
    weakest: Weakest | None
    expires_us: int
    short: dict[str, int]

    def has_room(self, tokens: int) -> bool:
        return self.slots > 0 and (self.kv_tokens is None or tokens <= self.kv_tokens)

    def take(self, entry: Entry) -> None:
        self.slots = max(0, self.slots - 1)
        if self.kv_tokens is not None:
            self.kv_tokens -= entry.tokens
        shortage = self.short.pop(entry.class_name, 0) - 1
        if shortage > 0:
            self.short[entry.class_name] = shortage

    def end(self) -> None:
        """Nothing more is wanted until the driver says so."""
        self.slots, self.weakest = 0, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``item`` comes next. ``passed`` do not fit and are passed over; ``victim`` gives its place."""

    item: Item
    passed: tuple[Item, ...] = ()
    victim: Item | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Choices that have been made, but not carried out: who was given, and how often others were passed over for them.

    Both by entry id.
    """

    given: set[str] = field(default_factory=set)
    passes: Counter[str] = field(default_factory=Counter)

    def give(self, choice: Choice) -> None:
        self.given.add(choice.item.entry.entry_id)
        self.passes.update(passed.entry.entry_id for passed in choice.passed)

    def passes_of(self, item: Item) -> int:
        return item.passes + self.passes[item.entry.entry_id]

    def left(self, in_order: Iterable[Item]) -> Iterable[Item]:
        """Who is not given out, in the same order."""
        return in_order if not self.given else (item for item in in_order if item.entry.entry_id not in self.given)


NOTHING_ASSUMED = Assumed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms an entry is given: ``victim`` may be taken in exchange; nobody is passed over more often."""

    victim: Item | None
    max_passes: int
    assumed: Assumed


def choose(lines: Lines, driver_id: str, want: StandingWant, terms: Terms) -> Choice | None:
    """What a claim of the driver is given next: the first of the classes that are short of slots, else of all.

    That is the first entry that has room, or the very first in exchange for ``victim``; None when nothing may be given.
    The look ends at an entry that does not fit and has been passed ``max_passes`` times. The head of all counts a pass
    too when a class that is short goes ahead and leaves no room for it: no share may keep it from memory for ever.
    """

    def in_order(classes: Container[str] | None = None) -> Iterable[Item]:
        return terms.assumed.left(lines.in_order_for(driver_id, classes))

    if want.short:
        choice = _first(in_order(want.short), want, terms, classes=want.short)
        choice = _pass_head(choice, next(iter(in_order()), None), want, terms)
        if choice is not None:
            return choice
    return _first(in_order(), want, terms)


def _pass_head(choice: Choice | None, head: Item | None, want: StandingWant, terms: Terms) -> Choice | None:
    """``choice``, with the pass that it costs a head that does not fit (beside it); None when it was passed enough."""
    if choice is None or head is None or want.slots == 0 or want.kv_tokens is None:
        return choice
    fits_after = head.entry.tokens <= want.kv_tokens - choice.item.entry.tokens
    if fits_after or choice.victim is not None or head is choice.item or head in choice.passed:
        return choice
    if terms.assumed.passes_of(head) >= terms.max_passes:
        return None
    return replace(choice, passed=(head, *choice.passed))


def _first(
    in_order: Iterable[Item], want: StandingWant, terms: Terms, *, classes: Container[str] | None = None
) -> Choice | None:
    passed: list[Item] = []
    for item in islice(in_order, LOOK_AHEAD):
        if classes is not None and item.entry.class_name not in classes:
            continue
        if want.has_room(item.entry.tokens):
            return Choice(item=item, passed=tuple(passed))
        if terms.victim is not None and not passed and _displaces(item, terms.victim, want):
            return Choice(item=item, victim=terms.victim)
        if want.slots == 0 or terms.assumed.passes_of(item) >= terms.max_passes:
            return None
        passed.append(item)
    return None


def _displaces(newcomer: Item, victim: Item, want: StandingWant) -> bool:
    """It may, is better by class and by score, and with what the victim returns there is memory enough."""
    weakest = want.weakest
    if weakest is None or not newcomer.preempts:
        return False
    if newcomer.entry.rank >= weakest.rank or newcomer.score >= weakest.score:
        return False
    return want.kv_tokens is None or newcomer.entry.tokens <= want.kv_tokens + victim.entry.tokens
