"""The ledger of KV blocks: which are free, who holds the others, and how many are promised.

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

Blocks are counted by references, so that a block can have several holders; it is free when the last lets go. Free
blocks are handed out in the order in which they became free, so what was freed last is overwritten last.

A ledger of unlimited memory (``num_blocks`` None) names no blocks: every sequence needs none, and all fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto


class LedgerError(Exception):
    """A block released twice, a promise broken, or books that do not balance. Always a fault of this package."""


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
        self._references = [0] * (num_blocks or 0)
        self._free: deque[int] = deque(range(num_blocks or 0))
        self._firm = 0
        self._expected = 0
        self._returning = 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold the KV of so many tokens."""
        if self.num_blocks is None:
            return 0
        return -(-tokens // self.block_size)

    @property
    def in_use(self) -> int:
        return len(self._references) - len(self._free)

    @property
    def available(self) -> int:
        """Free blocks that a running sequence may take beyond firm promises."""
        return len(self._free) - self._firm

    @property
    def room(self) -> int:
        """Free blocks that are promised to nobody; negative when running sequences outgrew their expectations."""
        return self.available - self._expected

    @property
    def returning(self) -> int:
        """Blocks of retired holdings: they come back when the plans in flight are reported."""
        return self._returning

    def can_open(self, *, blocks: int, spare: int) -> bool:
        """Whether a sequence that needs ``blocks`` in all can be let in and leave ``spare`` blocks of room."""
        return self.num_blocks is None or blocks + spare <= self.room

    def open(self, *, blocks_now: int, blocks_in_all: int, promise: Promise) -> Holding:
        """Let a sequence in: take ``blocks_now`` for it, promise the rest. Ask ``can_open`` first."""
        if self.num_blocks is not None and not blocks_now <= blocks_in_all <= self.available:
            raise LedgerError(f"cannot promise {blocks_in_all} blocks ({blocks_now} now) out of {self.available}")
        holding = Holding(promise=promise, admitted_for=blocks_in_all, blocks=[self._take() for _ in range(blocks_now)])
        self._promise(promise, holding.outstanding)
        return holding

    def can_grow(self, holding: Holding) -> bool:
        """Whether this holding can take one more block now."""
        return self.available > 0 or (holding.promise is Promise.FIRM and holding.outstanding > 0)

    def grow(self, holding: Holding) -> int:
        """Take one more block for a running sequence. Ask ``can_grow`` first."""
        if holding.retired or not self.can_grow(holding):
            raise LedgerError("this holding cannot grow")
        block = self._take()
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
        self._returning += len(holding.blocks)

    def close(self, holding: Holding) -> None:
        """No plan in flight names the sequence: its blocks are free."""
        if not holding.retired:
            raise LedgerError("a holding must retire before it is closed")
        self._returning -= len(holding.blocks)
        self._release(holding.blocks)
        holding.blocks = []
        holding.admitted_for = 0

    def check(self, holdings: Iterable[Holding]) -> None:
        """Raise ``LedgerError`` unless the books balance, given every holding that is open."""
        references = [0] * len(self._references)
        outstanding = dict.fromkeys(Promise, 0)
        returning = 0
        for holding in holdings:
            outstanding[holding.promise] += holding.outstanding
            returning += len(holding.blocks) if holding.retired else 0
            for block in holding.blocks:
                references[block] += 1
        unused = [block for block, count in enumerate(references) if count == 0]
        if references != self._references or unused != sorted(self._free):
            raise LedgerError("the blocks held and the blocks free do not make up the pool")
        if (
            list(outstanding.values()) != [self._expected, self._firm]
            or returning != self._returning
            or self.available < 0
        ):
            raise LedgerError("the promises do not add up")

    def _promise(self, promise: Promise, blocks: int) -> None:
        if promise is Promise.FIRM:
            self._firm += blocks
        else:
            self._expected += blocks

    def _take(self) -> int:
        block = self._free.popleft()
        self._references[block] += 1
        return block

    def _release(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._references[block] == 0:
                raise LedgerError(f"block {block} is released but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
