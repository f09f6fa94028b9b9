"""The ledger of KV memory: who holds which blocks, and how many are promised.

The scheduler names blocks; the worker obeys. A sequence that runs has one ``Holding``: the blocks that it has, and the
number that it was admitted for. What it was admitted for and does not have yet is *outstanding*, of one of two kinds:

* ``EXPECTED`` blocks are set aside at admission only: a new sequence is let in when they are left over, but a running
  one that outgrew its own expectation may take them.
* ``FIRM`` blocks are out of everyone else's reach: a holding that is firm can always grow to what it was admitted for.

::

    |<------------------------------- num_blocks ------------------------------->|
    |  held (in_use)  |  firm outstanding |  expected outstanding  |    room     |
                      |<---------------------- free ---------------------------->|
                                          |<------------- available ------------>|

A holding may begin with blocks of the pool that have the right content already (``blocks``): those that somebody holds
cost nothing, those that are free cost as much as any other.

A ledger of unlimited memory (``num_blocks`` None) names no blocks: every sequence needs none, and all fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from admission.blocks import BlockPool, LedgerError


class Promise(Enum):
    """What the outstanding blocks of a holding are worth (see the module)."""

    EXPECTED = auto()
    FIRM = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Holding:
    """One running sequence's account. Changed by the ledger alone.

    ``admitted_for`` is in blocks. A ``retired`` holding grows no more and gives its blocks back when it is closed.
    """

    promise: Promise
    admitted_for: int
    blocks: list[int] = field(default_factory=list)
    retired: bool = False

    @property
    def outstanding(self) -> int:
        return max(0, self.admitted_for - len(self.blocks))


class Ledger:
    """See the module. All counts are blocks."""

    def __init__(self, *, num_blocks: int | None, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.pool = BlockPool(num_blocks or 0)
        self._firm = 0
        self._expected = 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold the KV of so many tokens."""
        if self.num_blocks is None:
            return 0
        return -(-tokens // self.block_size)

    @property
    def in_use(self) -> int:
        return len(self.pool) - self.pool.num_free

    @property
    def available(self) -> int:
        """Free blocks that a running sequence may take beyond firm promises."""
        return self.pool.num_free - self._firm

    @property
    def room(self) -> int:
        """Free blocks that are promised to nobody; negative when running sequences outgrew their expectations."""
        return self.available - self._expected

    @property
    def returning(self) -> int:
        """Blocks of retired holdings alone: they come back when the plans in flight are reported."""
        return self.pool.returning

    def can_open(self, *, blocks: int, spare: int, shared: Sequence[int] = ()) -> bool:
        """Whether a sequence that needs ``blocks`` in all, with ``shared`` among them, leaves ``spare`` of room."""
        return self.num_blocks is None or blocks - self._num_held(shared) + spare <= self.room

    def open(self, *, blocks_now: int, blocks_in_all: int, promise: Promise, shared: Sequence[int] = ()) -> Holding:
        """Let a sequence in, with ``shared`` blocks first, new ones up to ``blocks_now``, and the rest promised.

        Ask ``can_open`` first.
        """
        if self.num_blocks is not None:
            cost = blocks_in_all - self._num_held(shared)
            if not len(shared) <= blocks_now <= blocks_in_all or cost > self.available:
                raise LedgerError(f"cannot promise {blocks_in_all} blocks ({blocks_now} now) out of {self.available}")
        for block in shared:
            self.pool.share(block)
        own = [self.pool.take() for _ in range(blocks_now - len(shared))]
        holding = Holding(promise=promise, admitted_for=blocks_in_all, blocks=[*shared, *own])
        self._promise(promise, holding.outstanding)
        return holding

    def can_grow(self, holding: Holding) -> bool:
        """Whether this holding can take one more block now."""
        return self.available > 0 or (holding.promise is Promise.FIRM and holding.outstanding > 0)

    def grow(self, holding: Holding) -> int:
        """Take one more block for a running sequence. Ask ``can_grow`` first."""
        if holding.retired or not self.can_grow(holding):
            raise LedgerError("this holding cannot grow")
        block = self.pool.take()
        if holding.outstanding > 0:
            self._promise(holding.promise, -1)
        holding.blocks.append(block)
        return block

    def retire(self, holding: Holding) -> None:
        """The sequence runs no more: its promise ends now, its blocks return with ``close``."""
        if holding.retired:
            raise LedgerError("this holding has retired before")
        self._promise(holding.promise, -holding.outstanding)
        holding.admitted_for = len(holding.blocks)
        holding.retired = True
        self.pool.retire(holding.blocks)

    def close(self, holding: Holding) -> None:
        """No plan in flight names the sequence: its blocks are free."""
        if not holding.retired:
            raise LedgerError("a holding must retire before it is closed")
        self.pool.release(holding.blocks)
        holding.blocks = []
        holding.admitted_for = 0

    def check(self, holdings: Iterable[Holding]) -> None:
        """Raise ``LedgerError`` unless the books balance, given every holding that is open."""
        outstanding = dict.fromkeys(Promise, 0)
        holders = []
        for holding in holdings:
            outstanding[holding.promise] += holding.outstanding
            holders.append((holding.blocks, int(not holding.retired)))
        self.pool.check(holders)
        if list(outstanding.values()) != [self._expected, self._firm] or self.available < 0:
            raise LedgerError("the promises do not add up")

    def _num_held(self, blocks: Sequence[int]) -> int:
        return sum([self.pool.is_held(block) for block in blocks])

    def _promise(self, promise: Promise, blocks: int) -> None:
        if promise is Promise.FIRM:
            self._firm += blocks
        else:
            self._expected += blocks
