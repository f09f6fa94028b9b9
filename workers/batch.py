"""From the work of a plan to the tensors of one forward pass.

All tokens of a step, of decodes and of prefill chunks, lie side by side in one flat row; which sequence a token belongs
to is known to the attention alone. Everything that the attention needs is computed here, once per step, and is the same
for all layers of a kind:

    token   0 1 2 3 4 | 5 6 7 8 9 | a b c
            singles     chunk       chunk
            ----- ---
            group group

A *single* is a sequence that computes one token (a decode, or the last token of a prompt). Singles are sorted by length
and cut into *groups*, each padded to its longest member and attended in one go: sorting keeps padding small, cutting
keeps a group's gathered keys and values within the processor's cache. A *chunk* is several tokens of one sequence; a
long one attends in pieces.

``lay_out`` decides this on plain numbers; ``build_batch`` makes the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.device import send
from workers.executor import PlanError
from workers.kv_cache import LayerKind
from workers.slots import Work

QUERIES_AT_ONCE = 128
"""A longer chunk attends in pieces of so many tokens: each looks back from its own end, not from the chunk's."""

# --- layout: plain numbers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Rows ``start .. stop`` of the flat row of tokens; ``length``: tokens that its longest sequence attends to."""

    start: int
    stop: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``works`` in the order of the flat row: singles by length, then chunks. Groups and chunks are stretches of it."""

    works: tuple[Work, ...]
    groups: tuple[Stretch, ...]
    chunks: tuple[Stretch, ...]


def lay_out(works: Sequence[Work], group_tokens: int) -> Layout:
    """Order the work of a step. No group is padded to more than ``group_tokens`` tokens, unless it is one sequence."""
    singles = sorted((work for work in works if work.length == 1), key=lambda work: work.start)
    longer = [work for work in works if work.length > 1]
    groups = []
    first = 0
    for row, work in enumerate(singles):
        if (row + 1 - first) * (work.start + 1) > group_tokens and row > first:
            groups.append(Stretch(start=first, stop=row, length=singles[row - 1].start + 1))
            first = row
    if singles:
        groups.append(Stretch(start=first, stop=len(singles), length=singles[-1].start + 1))
    chunks = []
    row = len(singles)
    for work in longer:
        for done in range(0, work.length, QUERIES_AT_ONCE):
            more = min(QUERIES_AT_ONCE, work.length - done)
            chunks.append(Stretch(start=row, stop=row + more, length=work.start + done + more))
            row += more
    return Layout(works=(*singles, *longer), groups=tuple(groups), chunks=tuple(chunks))


# --- tensors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a stretch of tokens attends to: the pool's ``rows`` to gather, and what of them counts.

    ``mask`` is added to the scores: 0 or minus infinity. For a group of n singles ``rows`` is [n * kv_heads * blocks]
    and ``mask`` [n * kv_heads, 1, tokens]; for a chunk of q tokens [kv_heads * blocks] and [q, tokens].
    """

    start: int
    stop: int
    rows: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTensors:
    """For all layers of a kind: where each token's keys and values go ([kv_heads * tokens]), and what it looks at."""

    write_rows: Tensor
    groups: tuple[View, ...]
    chunks: tuple[View, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass. ``ids`` and ``positions`` are [tokens]; ``emit_rows`` has the row of each of ``emitting``."""

    ids: Tensor
    positions: Tensor
    emit_rows: Tensor
    emitting: tuple[Work, ...]
    kinds: Mapping[LayerKind, KindTensors]


class BlockTables:
    """The block table of every slot as one tensor [slots, blocks], padded with the null block.

    Kept beside the slots so that a step costs no walk over block lists, however long the contexts.
    """

    def __init__(self, *, max_slots: int, max_blocks: int, null_block: int) -> None:
        self._null_block = null_block
        self._lengths = [0] * max_slots
        self.tensor = torch.full((max_slots, max_blocks), null_block, dtype=torch.int64)

    def start(self, slot: int, blocks: Sequence[int]) -> None:
        self.tensor[slot].fill_(self._null_block)
        self._lengths[slot] = 0
        self.grow(slot, blocks)

    def grow(self, slot: int, blocks: Sequence[int]) -> None:
        begin, end = self._lengths[slot], self._lengths[slot] + len(blocks)
        if end > self.tensor.shape[1]:
            raise PlanError(f"slot {slot} is given {end} blocks; a whole context fills {self.tensor.shape[1]}")
        self.tensor[slot, begin:end] = torch.tensor(blocks, dtype=torch.int64)
        self._lengths[slot] = end


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the tensors are made for: the pool's geometry, and where and in which numbers the model computes."""

    block_size: int
    kinds: tuple[LayerKind, ...]
    dtype: torch.dtype
    device: torch.device


def build_batch(layout: Layout, tables: Tensor, target: Target) -> Batch:
    """The tensors of one step. ``tables`` is [slots, blocks] on the host."""
    works = layout.works
    ids = [token for work in works for token in work.ids]
    positions = torch.tensor([at for work in works for at in range(work.start, work.start + work.length)])
    lengths = torch.tensor([work.length for work in works])
    slots = torch.tensor([work.state.slot for work in works]).repeat_interleave(lengths)
    tokens = _Tokens(slots=slots, positions=positions, tables=tables)
    last_rows = (lengths.cumsum(0) - 1).tolist()
    emitting = [(work, row) for work, row in zip(works, last_rows, strict=True) if work.emits]
    return Batch(
        ids=send(torch.tensor(ids), target.device),
        positions=send(positions, target.device),
        emit_rows=send(torch.tensor([row for _, row in emitting], dtype=torch.int64), target.device),
        emitting=tuple(work for work, _ in emitting),
        kinds={kind: _kind_tensors(kind, layout, tokens, target) for kind in target.kinds},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """The flat row of tokens, [tokens] each: whose they are, and where in their sequence. ``tables``: of all slots."""

    slots: Tensor
    positions: Tensor
    tables: Tensor


def _kind_tensors(kind: LayerKind, layout: Layout, tokens: _Tokens, target: Target) -> KindTensors:
    size, device = target.block_size, target.device
    blocks = tokens.tables[tokens.slots, tokens.positions // size]
    write_rows = head_rows(blocks[None], kind.kv_heads)[0] * size + tokens.positions % size
    groups, chunks = [], []
    for part in layout.groups:
        num_blocks = -(-part.length // size)
        rows = head_rows(tokens.tables[tokens.slots[part.start : part.stop], :num_blocks], kind.kv_heads)
        # Scores of groups are float32 always (see attention.py), so their mask is.
        mask = mask_of(tokens.positions[part.start : part.stop], num_blocks * size, kind.window, torch.float32)
        mask = mask.repeat_interleave(kind.kv_heads, dim=0)[:, None, :]
        groups.append(_view(part, rows, mask, device))
    for part in layout.chunks:
        num_blocks = -(-part.length // size)
        rows = head_rows(tokens.tables[tokens.slots[part.start], None, :num_blocks], kind.kv_heads)
        mask = mask_of(tokens.positions[part.start : part.stop], num_blocks * size, kind.window, target.dtype)
        chunks.append(_view(part, rows, mask, device))
    return KindTensors(write_rows=send(write_rows.flatten(), device), groups=tuple(groups), chunks=tuple(chunks))


def _view(part: Stretch, rows: Tensor, mask: Tensor, device: torch.device) -> View:
    return View(start=part.start, stop=part.stop, rows=send(rows.flatten(), device), mask=send(mask, device))


def head_rows(blocks: Tensor, kv_heads: int) -> Tensor:
    """The pool's rows of ``blocks`` [sequences, n] for every head: [sequences, kv_heads, n]."""
    return blocks[:, None, :] * kv_heads + torch.arange(kv_heads, device=blocks.device)[None, :, None]


def mask_of(positions: Tensor, length: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[queries, length]: 0 where the query at each of ``positions`` may look, minus infinity elsewhere."""
    keys = torch.arange(length, device=positions.device)
    hidden = keys > positions[:, None]
    if window is not None:
        hidden |= keys <= positions[:, None] - window
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, float("-inf"))
