"""The waiting queue's contract: its entries, its acts and their results.

One rule, two stores: ``memory_queue`` (pure, synchronous, for the simulator) and ``redis_queue`` (Lua, shared by all
gateways). A stateful differential test holds them equal.

An *entry* is one request waiting to start, or one paused sequence waiting to continue. Its life: ``offer`` queues it or
hands it to a standing want; ``claim`` gives it to a driver; ``settle`` ends it. ``withdraw`` removes it before a claim.
Every act is atomic, and idempotent by entry id: repeating an act whose outcome was lost changes nothing and answers the
same.

The entries of a *group* (the sequences of one request) are offered in one act, all or none: what of them meets standing
wants is handed over, and there must be room for the rest. From then on each goes its own way.

The bounds count what waits (queued, paused included), never what was handed over or claimed. A *standing want* is what
a driver asked for in its last claim and did not get: the next offers meet it and never count as waiting. What had
started may come back past the bounds: paused (``give_back``), or, when what ran it was lost, offered by its origin
under another id (``offer_past_bounds``).

Which entry goes next is a matter of where it stands (``admission.standing``): by score, and within a lane by whose
account's turn it is. One that does not fit the room of a driver now may be *passed over*, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from admission.classes import PriorityClass
from admission.events import Weakest
from admission.standing import Standing

LOOK_AHEAD = 16
"""How many entries a claim looks at for one that fits the driver's room. Each costs a read of the store, and in a queue
where so many in a row do not fit, memory is not what a further look would win.
"""


class StoreUnavailable(Exception):
    """The store could not perform an act, or its answer was lost: whether the act took place is not known."""


class Offered(StrEnum):
    """The result of an offer, for one entry.

    WITHDRAWN: a withdrawal of its id, or of another of its group, overtook it, so it changes nothing. SHED: it was
    queued, and has been displaced by an entry of a better class since.
    """

    QUEUED = "queued"
    HANDED = "handed"
    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    CLASS_FULL = "class_full"
    SHED = "shed"
    WITHDRAWN = "withdrawn"


REFUSALS = frozenset({Offered.QUEUE_FULL, Offered.QUEUE_TOKENS_FULL, Offered.CLASS_FULL})
"""Outcomes that are those of a whole group: nothing of it was taken."""

MAX_GROUP = 128
"""Entries that one offer may hold: as many choices as OpenAI allows. The store does nothing else meanwhile."""

MAX_SHED = 8
"""How many entries one offer may displace: a few small ones for a large one, but never a good part of the queue."""


class Withdrawn(StrEnum):
    """The result of a withdrawal. CLAIMED: a driver has it, and the cancel must be sent there."""

    WITHDRAWN = "withdrawn"
    CLAIMED = "claimed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """``driver_id`` holds the sequence: started when CLAIMED, paused when WITHDRAWN; None: nobody does."""

    outcome: Withdrawn
    driver_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds of the cluster's waiting queue: entries, tokens (prompt plus expected output), payload bytes.

    ``max_passes``: how often, in all drivers together, an entry may see another given out ahead of it because it does
    not fit the room that a driver has now. More uses memory better; each may cost a large entry one more wait. 0:
    nothing is ever passed over.
    """

    max_requests: int
    max_tokens: int | None = None
    max_bytes: int | None = None
    max_passes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """What the class of an entry says when it is offered.

    ``max_requests`` and ``max_tokens`` bound what waits of the class (None: only the queue's bounds count). ``sheds``:
    an entry that finds the queue full may displace what waits of lower classes; ``may_be_shed``: it may be displaced.
    ``preempts``: it may take the place of a running sequence of a lower class, in exchange. ``is_charged``: what it
    takes is on its account already.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    sheds: bool = False
    may_be_shed: bool = False
    preempts: bool = True
    is_charged: bool = False

    @classmethod
    def of(cls, priority: PriorityClass) -> ClassRule:
        """What the queue is told of a class with each offer."""
        return cls(
            max_requests=priority.max_waiting,
            max_tokens=priority.max_waiting_tokens,
            sheds=priority.sheds,
            may_be_shed=priority.sheddable,
            preempts=priority.preempts,
        )

    def past_bounds(self) -> ClassRule:
        """The same for what had started and comes back: it needs no room, has a right to stay, and was charged then."""
        return replace(self, max_requests=None, max_tokens=None, sheds=False, may_be_shed=False, is_charged=True)


NO_CLASS_RULE = ClassRule()
"""A class without bounds of its own, which preempts, and neither sheds nor is shed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What waits. ``tokens`` is prompt plus expected output; ``payload`` is opaque to the queue (a wire ``Job``).

    Where it stands is fixed at the first offer, by the store's own clock. ``tenant`` is told to the driver; whose turn
    it is goes by ``standing.account``. ``origin`` is the relay address at which its client is told when it is shed.
    """

    entry_id: str
    class_name: str
    rank: int
    standing: Standing
    tokens: int
    payload: bytes
    tenant: str = ""
    origin: str = ""


def check_group(entries: Sequence[Entry]) -> None:
    """``ValueError`` unless these can be offered as one group: at most ``MAX_GROUP``, all of one class."""
    if not 1 <= len(entries) <= MAX_GROUP:
        raise ValueError(f"a group holds 1 to {MAX_GROUP} entries, not {len(entries)}")
    if len({(entry.class_name, entry.rank) for entry in entries}) > 1:
        raise ValueError("the entries of a group are of one class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed:
    """An entry that was displaced: whoever displaced it tells ``origin``."""

    entry_id: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry given to a driver. ``victim_id`` names the sequence that was put back for it (an exchange)."""

    entry: Entry
    arrival_us: int
    score: int
    victim_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a driver asks of a claim: ``slots`` entries at most, which have ``kv_tokens`` of room (None: not limited).

    ``weakest`` may be given back for a better entry that has no slot or no room. ``short`` names the classes that have
    fewer slots at this driver than they are guaranteed, and by how many: what waits of them goes first, for so many.
    """

    slots: int
    kv_tokens: int | None = None
    weakest: Weakest | None = None
    short: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferResult:
    """``outcomes`` has one for each entry, in order; a refusal is that of all.

    ``position`` counts the entries ahead of the first one that waits; ``waiting_tokens`` is what waits in all, for
    Retry-After. ``shed`` names what this offer displaced; repeating the offer names it again.
    """

    outcomes: tuple[Offered, ...]
    position: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    shed: tuple[Shed, ...] = ()

    @property
    def outcome(self) -> Offered:
        """That of an offer of one entry."""
        (outcome,) = self.outcomes
        return outcome

    @property
    def refusal(self) -> Offered | None:
        """Why nothing of it was taken; None: it was."""
        return self.outcomes[0] if self.outcomes[0] in REFUSALS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """What waits now, in the whole cluster, for one model. By class: its name, and how many requests and tokens."""

    requests: int
    tokens: int
    by_class: tuple[tuple[str, int, int], ...]


class QueueObserver(Protocol):
    """Is told of every act of this process on a queue, once it took place.

    ``act`` is its number among all acts on that queue, by whomever: so what several gateways saw can be put in order.
    Numbers rise, also when the store has lost its data between two acts; an offer that changed nothing has the number
    of the last act that did.
    """

    def offered(self, act: int, entries: Sequence[Entry], result: OfferResult) -> None: ...

    def given(self, act: int, driver_id: str, claims: Sequence[Claim]) -> None: ...

    def returned(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None: ...

    def settled(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None: ...

    def withdrew(self, act: int, entry_id: str, withdrawal: Withdrawal) -> None: ...

    def forgot(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        """The driver is gone. These of what it had wait for others; what it held is lost."""


class NoObserver:
    """Nobody looks."""

    def offered(self, act: int, entries: Sequence[Entry], result: OfferResult) -> None:
        pass

    def given(self, act: int, driver_id: str, claims: Sequence[Claim]) -> None:
        pass

    def returned(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        pass

    def settled(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        pass

    def withdrew(self, act: int, entry_id: str, withdrawal: Withdrawal) -> None:
        pass

    def forgot(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        pass
