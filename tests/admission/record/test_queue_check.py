"""The doors' acts through the queue rule again: what the rule would have done otherwise is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from admission.events import Weakest
from admission.memory_queue import MemoryQueue
from admission.queue import NO_CLASS_RULE, Asked, Claim, ClassRule, Entry, Offered, OfferResult, QueueBounds
from admission.record.entries import Forgot, Given, OfferMade, Returned, Settled, Withdrew
from admission.record.queue_check import QueueChecked, check_queue
from admission.record.waiting import Act
from admission.standing import HeadStart, Standing

Offering = Callable[[Entry, int, ClassRule], OfferResult]
BOUNDS = QueueBounds(max_requests=2, max_tokens=100)


class Recorded:
    """A queue in memory whose acts are recorded as a door does it."""

    def __init__(self) -> None:
        self.queue = MemoryQueue(BOUNDS)
        self.acts: list[Act] = []
        self.now_us = 0

    def offer(self, name: str, *, tokens: int = 10, rank: int = 1, head_start_us: int = 0) -> Offered:
        stands = Standing(scored_by=HeadStart(us=head_start_us), lane=f"c{rank}")
        entry = Entry(entry_id=name, class_name=f"c{rank}", rank=rank, standing=stands, tokens=tokens, payload=b"")
        return self._offer(self.queue.offer, entry, f"of {name}")

    def move(self, name: str, again: str) -> None:
        """Offer again what its driver had."""
        stands = Standing(scored_by=HeadStart(us=0), lane="c1")
        entry = Entry(entry_id=again, class_name="c1", rank=1, standing=stands, tokens=10, payload=b"")
        self._offer(self.queue.offer_past_bounds, entry, f"of {name}")

    def _offer(self, offer: Offering, entry: Entry, request: str) -> Offered:
        self.now_us += 1
        result = offer(entry, self.now_us, NO_CLASS_RULE)
        self.acts.append(
            OfferMade(
                now_us=self.now_us,
                act=self._number(),
                model="m",
                request_id=request,
                sequence_id=entry.entry_id,
                choice=0,
                class_name=entry.class_name,
                rank=entry.rank,
                tenant="",
                standing=entry.standing,
                prompt_tokens=entry.tokens - 1,
                max_tokens=9,
                expected_tokens=1,
                emitted_tokens=0,
                deadline_us=None,
                outcome=result.outcome,
                ahead=result.position,
                waiting_requests=result.waiting_requests,
                waiting_tokens=result.waiting_tokens,
                shed=(),
            )
        )
        return result.outcome

    def claim(self, slots: int, *, weakest: Weakest | None = None, kv_tokens: int | None = None) -> Sequence[Claim]:
        self.now_us += 1
        claims = self.queue.claim("d", Asked(slots=slots, weakest=weakest, kv_tokens=kv_tokens), self.now_us)
        self.acts.append(
            Given(
                now_us=self.now_us,
                act=self._number(),
                model="m",
                driver_id="d",
                sequence_ids=tuple([claim.entry.entry_id for claim in claims]),
                victims=tuple([claim.victim_id or "" for claim in claims]),
            )
        )
        return claims

    def settle(self, *names: str) -> None:
        self.queue.settle("d", names, self.now_us)
        self.acts.append(Settled(now_us=self.now_us, act=self._number(), model="m", driver_id="d", sequence_ids=names))

    def give_back(self, *names: str) -> None:
        self.queue.give_back("d", names, self.now_us)
        self.acts.append(Returned(now_us=self.now_us, act=self._number(), model="m", driver_id="d", sequence_ids=names))

    def withdraw(self, name: str) -> None:
        outcome = self.queue.withdraw(name, self.now_us).outcome
        self.acts.append(Withdrew(now_us=self.now_us, act=self._number(), model="m", sequence_id=name, outcome=outcome))

    def forget(self) -> None:
        """The driver is gone. What waits for others then is found by another one, which takes all and gives it back."""
        self.queue.forget_driver("d", self.now_us)
        claims = self.queue.claim("other", Asked(slots=100), self.now_us)
        names = tuple([claim.entry.entry_id for claim in claims])
        self.queue.give_back("other", names, self.now_us)
        self.queue.forget_driver("other", self.now_us)
        self.acts.append(Forgot(now_us=self.now_us, act=self._number(), model="m", driver_id="d", waiting=names))

    def check(self) -> QueueChecked:
        return check_queue(self.acts, BOUNDS, {})

    def _number(self) -> int:
        return len(self.acts) + 1


def busy() -> Recorded:
    """Every kind of act: handed, queued, refused, claimed past another, exchanged, given back, withdrawn, settled."""
    recorded = Recorded()
    recorded.claim(1)
    assert recorded.offer("a", rank=2) is Offered.HANDED
    (claim,) = recorded.claim(0)
    recorded.offer("b", tokens=90)
    recorded.offer("c", tokens=5)
    assert recorded.offer("d") is Offered.QUEUE_FULL
    recorded.withdraw("b")
    weakest = Weakest(sequence_id="a", rank=2, score=claim.score)
    recorded.offer("e", rank=0, head_start_us=1_000)
    (exchange,) = recorded.claim(0, weakest=weakest)
    assert exchange.victim_id == "a"
    recorded.give_back("e")
    recorded.settle("e")
    recorded.claim(2)
    recorded.settle("a", "c")
    return recorded


def test_what_the_rule_did_it_does_again() -> None:
    """Offers, bounds, what waits after each, and exchanges."""
    checked = busy().check()
    assert checked.differences == []
    assert (checked.offers, checked.exchanges, checked.strangers) == (5, 1, 0)


def test_a_refusal_that_the_bounds_did_not_ask_for_is_found() -> None:
    """A queue that refuses too early is a fault that no client can prove."""
    recorded = busy()
    index = next(i for i, act in enumerate(recorded.acts) if isinstance(act, OfferMade) and act.sequence_id == "c")
    act = recorded.acts[index]
    assert isinstance(act, OfferMade)
    recorded.acts[index] = replace(act, outcome=Offered.QUEUE_FULL)
    first = recorded.check().differences[0]
    assert (first.act, first.field, first.logged, first.replayed) == (act.act, "outcome", "queue_full", "queued")


def test_an_exchange_that_the_rule_forbids_is_found() -> None:
    """Nobody loses his slot to one who is no better."""
    recorded = Recorded()
    recorded.claim(1)
    recorded.offer("a")
    recorded.claim(0)
    recorded.offer("b")
    recorded.claim(1)
    given = recorded.acts[-1]
    assert isinstance(given, Given)
    recorded.acts[-1] = replace(given, victims=("a",))
    (difference,) = recorded.check().differences
    assert (difference.field, difference.sequence_id) == ("victim", "b")


def test_who_was_passed_over_is_counted() -> None:
    """Whether it fitted is not in the log, so it is no difference; that it happened is worth knowing."""
    recorded = Recorded()
    recorded.offer("large", tokens=80)
    recorded.offer("small", tokens=5)
    (claim,) = recorded.claim(2, kv_tokens=10)
    assert claim.entry.entry_id == "small"
    checked = recorded.check()
    assert (checked.claims, checked.claims_passing, checked.differences) == (1, 1, [])


def test_a_log_that_begins_in_the_middle_names_strangers() -> None:
    """What waited before is not known, so what follows cannot be held against the rule."""
    recorded = busy()
    recorded.acts = recorded.acts[2:]
    assert recorded.check().strangers > 0


def test_what_a_lost_driver_leaves_is_followed() -> None:
    """What it held is lost and offered again, past the bounds; what it had not, or had paused, waits."""
    recorded = Recorded()
    for name in ("held", "paused"):
        recorded.offer(name)
    recorded.claim(2)
    recorded.claim(1)  # its standing want
    assert recorded.offer("handed") is Offered.HANDED
    recorded.give_back("paused")
    recorded.forget()
    assert recorded.offer("late") is Offered.QUEUE_FULL
    recorded.move("held", "held again")
    assert recorded.queue.stats().requests == 3 > BOUNDS.max_requests
    recorded.claim(4)
    recorded.settle("paused", "handed", "held again")
    assert recorded.check().differences == []


def test_a_driver_that_keeps_what_it_lost_is_a_difference() -> None:
    """What waits after each act tells it."""
    recorded = Recorded()
    recorded.offer("a")
    recorded.claim(1)
    recorded.give_back("a")
    recorded.forget()
    forgot = recorded.acts[-1]
    assert isinstance(forgot, Forgot)
    recorded.acts[-1] = replace(forgot, waiting=())
    recorded.offer("b")
    assert [each.field for each in recorded.check().differences] == ["waiting_requests", "waiting_tokens"]
