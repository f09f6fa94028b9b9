"""The pool of KV blocks: which are free, how many hold each of the others, which can be used again for their content.

Blocks are counted by references, as several sequences can hold one; it is free when the last lets go. A full one may be
*published* under a key that says what it holds. Free blocks that are published stay readable until the memory is
needed: blank blocks are handed out first, in the order in which they became free; then published ones, the least
recently used first. When a sequence lets go of its blocks the last ones count as used before the first, because a
prefix is worth nothing without its beginning.

::

    held (in use): references > 0, some of them published        free: blank | published, oldest first
    returning: held, but only by sequences that run no more
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

Key = bytes | tuple[str, int]
"""What a block holds: the hash of all tokens up to its end, or (sequence, index) for what only that sequence has."""


class LedgerError(Exception):
    """A block released twice, a promise broken, books that do not balance. Always a fault of this package."""


class BlockPool:
    """All blocks of one worker, by number."""

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * num_blocks
        self._running = [0] * num_blocks  # references of sequences that run
        self._blank: deque[int] = deque(range(num_blocks))
        self._published: dict[int, None] = {}  # free and published, least recently used first
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self.returning = 0

    def __len__(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._published)

    def is_held(self, block: int) -> bool:
        return self._references[block] > 0

    def find(self, key: Key) -> int | None:
        """The block that holds this content; None: there is none."""
        return self._block_of.get(key)

    def take(self) -> int:
        """A free block, for content of its own."""
        if self._blank:
            block = self._blank.popleft()
        else:
            block = next(iter(self._published))
            self._unpublish(block)
            del self._published[block]
        self._references[block] = self._running[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more sequence holds a published block."""
        if self._references[block] == 0:
            del self._published[block]
        elif self._running[block] == 0:
            self.returning -= 1
        self._references[block] += 1
        self._running[block] += 1

    def retire(self, blocks: Iterable[int]) -> None:
        """A sequence that holds these runs no more."""
        for block in blocks:
            self._running[block] -= 1
            if self._running[block] == 0:
                self.returning += 1

    def release(self, blocks: Sequence[int]) -> None:
        """A sequence that has retired lets go of these."""
        for block in blocks:
            if self._references[block] <= self._running[block]:
                raise LedgerError(f"block {block} is released but nobody holds it")
            self._references[block] -= 1
        freed = [block for block in blocks if self._references[block] == 0]
        self.returning -= len(freed)
        self._blank.extend([block for block in freed if block not in self._key_of])
        for block in reversed(freed):
            if block in self._key_of:
                self._published[block] = None

    def publish(self, block: int, key: Key) -> None:
        """A held block has ``key``'s content from now on. If another has it already, that one stays the one to find."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self, key: Key) -> None:
        """Nobody will, or nobody should, look for this content again."""
        block = self._block_of.get(key)
        if block is None:
            return
        self._unpublish(block)
        if self._references[block] == 0:
            del self._published[block]
            self._blank.append(block)

    def check(self, holders: Iterable[tuple[Sequence[int], int]]) -> None:
        """Raise ``LedgerError`` unless the counts are those of all ``holders``: their blocks, and 1 while they run."""
        references, running = [0] * len(self), [0] * len(self)
        for blocks, runs in holders:
            for block in blocks:
                references[block] += 1
                running[block] += runs
        free = [block for block, count in enumerate(references) if count == 0]
        if references != self._references or running != self._running:
            raise LedgerError("the blocks held are not those that sequences hold")
        if free != sorted([*self._blank, *self._published]):
            raise LedgerError("the blocks held and the blocks free do not make up the pool")
        if self.returning != sum(held > 0 and runs == 0 for held, runs in zip(references, running, strict=True)):
            raise LedgerError("the blocks that return are miscounted")
        unpublished = [block for block in self._published if block not in self._key_of]
        if unpublished or any(block in self._key_of for block in self._blank):
            raise LedgerError("a free block is published and blank")
        if {block: key for key, block in self._block_of.items()} != self._key_of:
            raise LedgerError("the keys of the blocks do not match")

    def _unpublish(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
