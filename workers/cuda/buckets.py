"""Which decodes are replayed as a CUDA graph, and in which shape. Plain numbers, no torch.

A graph has fixed shapes, so it is captured for a few *buckets* of rows (and, where the attention gathers, of blocks to
look at), and a batch takes the smallest that holds it; the rest is padding. Steps of a power of two keep the padding
below one half, and the number of graphs at a logarithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from workers.slots import Work

FEWEST_BLOCKS = 8
"""Blocks of the smallest bucket: a shorter table saves nothing that is worth a graph."""


TOKENS_READ = 1 << 18
"""Most tokens that a graph gathers at once, of 32 sequences 8,192 each: 2 GB with 8 key heads of 128. Larger decodes
run as other steps do, group by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A decode of up to ``rows`` sequences with up to ``blocks`` blocks each."""

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """All shapes that there are graphs for: each of ``rows`` with each of ``blocks``, both rising.

    ``most_read`` bounds the blocks that all rows of a bucket read together (None: they are not read to their end).
    """

    rows: tuple[int, ...]
    blocks: tuple[int, ...]
    most_read: int | None = None

    def all_largest_first(self) -> tuple[Bucket, ...]:
        """In the order of capture: what the largest needed of memory, the others find there."""
        every = (Bucket(rows=rows, blocks=blocks) for rows in self.rows[::-1] for blocks in self.blocks[::-1])
        return tuple(bucket for bucket in every if self._is_within(bucket))

    def smallest_for(self, *, rows: int, blocks: int) -> Bucket | None:
        """The least bucket that holds so much; None if there is none."""
        fitting_rows, fitting_blocks = _least(self.rows, rows), _least(self.blocks, blocks)
        if fitting_rows is None or fitting_blocks is None:
            return None
        bucket = Bucket(rows=fitting_rows, blocks=fitting_blocks)
        return bucket if self._is_within(bucket) else None

    def bucket_of(self, works: Sequence[Work], block_size: int) -> Bucket | None:
        """The bucket of a step's work; None when it is no pure decode, or too large for any."""
        if not works or any(work.length != 1 or not work.emits for work in works):
            return None
        longest = max(work.start for work in works) + 1
        return self.smallest_for(rows=len(works), blocks=-(-longest // block_size))

    def _is_within(self, bucket: Bucket) -> bool:
        return self.most_read is None or bucket.rows * bucket.blocks <= self.most_read


class TableUse(Enum):
    """What an attention does with the end of a block table that a sequence does not reach."""

    SKIPPED = auto()  # it stops where the sequence ends: one width serves all
    READ = auto()  # it reads and masks it, so the width has a price


def decode_buckets(*, max_slots: int, max_blocks: int, block_size: int, use: TableUse) -> Buckets:
    """The buckets for up to ``max_slots`` sequences with block tables of up to ``max_blocks``."""
    if use is TableUse.SKIPPED:
        return Buckets(rows=rising(max_slots), blocks=(max_blocks,))
    blocks = rising(max_blocks, first=FEWEST_BLOCKS, factor=4)
    return Buckets(rows=rising(max_slots), blocks=blocks, most_read=TOKENS_READ // block_size)


def rising(most: int, first: int = 1, factor: int = 2) -> tuple[int, ...]:
    """``first``, ``first * factor`` and so on below ``most``, then ``most``."""
    steps = []
    step = first
    while step < most:
        steps.append(step)
        step *= factor
    return (*steps, most)


def _least(steps: Iterable[int], needed: int) -> int | None:
    return next((step for step in steps if step >= needed), None)
