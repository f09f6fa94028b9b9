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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Bucket:
    """A decode of up to ``rows`` sequences with up to ``blocks`` blocks each."""

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """All shapes that there are graphs for: each of ``rows`` with each of ``blocks``, both rising."""

    rows: tuple[int, ...]
    blocks: tuple[int, ...]

    def all_largest_first(self) -> tuple[Bucket, ...]:
        """In the order of capture: what the largest needed of memory, the others find there."""
        return tuple(Bucket(rows=rows, blocks=blocks) for rows in self.rows[::-1] for blocks in self.blocks[::-1])

    def smallest_for(self, *, rows: int, blocks: int) -> Bucket | None:
        """The least bucket that holds so much; None if there is none."""
        fitting_rows, fitting_blocks = _least(self.rows, rows), _least(self.blocks, blocks)
        if fitting_rows is None or fitting_blocks is None:
            return None
        return Bucket(rows=fitting_rows, blocks=fitting_blocks)

    def bucket_of(self, works: Sequence[Work], block_size: int) -> Bucket | None:
        """The bucket of a step's work; None when it is no pure decode, or too large for any."""
        if not works or any(work.length != 1 or not work.emits for work in works):
            return None
        longest = max(work.start for work in works) + 1
        return self.smallest_for(rows=len(works), blocks=-(-longest // block_size))


class TableUse(Enum):
    """What an attention does with the end of a block table that a sequence does not reach."""

    SKIPPED = auto()  # it stops where the sequence ends: one width serves all
    READ = auto()  # it reads and masks it, so the width has a price


def decode_buckets(*, max_slots: int, max_blocks: int, use: TableUse) -> Buckets:
    """The buckets for up to ``max_slots`` sequences with block tables of up to ``max_blocks``."""
    blocks = (max_blocks,) if use is TableUse.SKIPPED else rising(max_blocks, first=FEWEST_BLOCKS, factor=4)
    return Buckets(rows=rising(max_slots), blocks=blocks)


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
