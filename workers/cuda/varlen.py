"""Attention on pages, in place: ``torch.nn.attention.varlen.varlen_attn`` with a block table.

The kernel reads keys and values where they lie, so nothing is gathered, and decodes and chunks of any lengths go
through it in one call per layer. Its causal mask is aligned to the end: the last query of a sequence sees all of its
``seqused_k`` tokens, the one before it one less. That is what a chunk behind a computed past needs, and a decode.

A sliding window of w tokens counts the token itself, the kernel's counts those before it: w - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workers.attention import Arguments, Attender, Step
from workers.cuda.buckets import TableUse
from workers.cuda.inputs import StepInputs, flat_inputs
from workers.device import send
from workers.kv_cache import KVPool
from workers.slots import Work


class KeyOffsets(Enum):
    """Whether the kernel wants cumulated lengths of the keys, which a block table makes superfluous."""

    OMITTED = auto()  # FlashAttention 3 refuses them beside a block table
    GIVEN = auto()  # FlashAttention 2 has them as a required argument


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKernel:
    """``function`` is ``varlen_attn``, in the way in which it was found to work here, with pages of ``page_size``."""

    function: Callable[..., Any]
    page_size: int
    key_offsets: KeyOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Whose queries lie where: ``query_offsets`` [sequences + 1] and ``lengths`` [sequences] are 32-bit, on the device.

    ``lengths`` counts what is attended to, the step's own tokens included; ``places`` [tokens] says where in the pool
    each token's keys and values go. The longest of the queries and of the lengths are plain numbers, or upper bounds.
    """

    query_offsets: Tensor
    lengths: Tensor
    tables: Tensor
    places: Tensor
    longest_query: int
    longest: int


class Pages(NamedTuple):
    """Keys and values of a layer, [pages, page_size, kv_heads, dim] of each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenStep:
    """The attention of one forward pass."""

    kernel: PagedKernel
    pool: KVPool
    ragged: Ragged

    def attend(self, arguments: Arguments, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.pool.write_tokens(arguments.layer, self.ragged.places, key.transpose(0, 1), value.transpose(0, 1))
        pages = Pages(*self.pool.pages(arguments.layer))
        return attend_to_pages(self.kernel, self.ragged, query.transpose(0, 1), pages, arguments)


def attend_to_pages(kernel: PagedKernel, ragged: Ragged, query: Tensor, pages: Pages, arguments: Arguments) -> Tensor:
    """[tokens, heads, dim] of ``query``, and as much of the result."""
    key_offsets = None
    if kernel.key_offsets is KeyOffsets.GIVEN:
        key_offsets = torch.zeros_like(ragged.query_offsets)
        torch.cumsum(ragged.lengths, dim=0, dtype=torch.int32, out=key_offsets[1:])
    attended: Tensor = kernel.function(
        query.contiguous(),
        pages.keys,
        pages.values,
        ragged.query_offsets,
        key_offsets,
        ragged.longest_query,
        ragged.longest,
        scale=arguments.scale,
        window_size=(-1 if arguments.window is None else arguments.window - 1, 0),
        enable_gqa=True,
        seqused_k=ragged.lengths,
        block_table=ragged.tables,
    )
    return attended


class VarlenBackend:
    """A ``Backend`` on a pool with pages of the kernel's size; it also attends to padded decodes."""

    name = "varlen"
    table_use = TableUse.SKIPPED

    def __init__(self, kernel: PagedKernel, pool: KVPool, device: torch.device) -> None:
        self._kernel = kernel
        self._pool = pool
        self._device = device

    def prepare(self, works: Sequence[Work], tables: Tensor) -> Step:
        inputs = flat_inputs(works, tables, block_size=self._pool.block_size)
        ends = list(accumulate(work.length for work in works))
        emitting = [(work, end - 1) for work, end in zip(works, ends, strict=True) if work.emits]
        ragged = ragged_of(works, inputs, block_size=self._pool.block_size)
        return Step(
            works=tuple(works),
            ids=send(inputs.ids, self._device),
            positions=send(inputs.positions, self._device),
            emit_rows=send(torch.tensor([row for _, row in emitting], dtype=torch.int64), self._device),
            emitting=tuple(work for work, _ in emitting),
            attender=self._step(
                Ragged(
                    query_offsets=send(ragged.query_offsets, self._device),
                    lengths=send(ragged.lengths, self._device),
                    tables=send(ragged.tables, self._device),
                    places=send(ragged.places, self._device),
                    longest_query=ragged.longest_query,
                    longest=ragged.longest,
                )
            ),
        )

    def attender(self, inputs: StepInputs) -> Attender:
        """For one token of each row of ``inputs``, which lie where the pool does."""
        return self._step(ragged_decodes(inputs, block_size=self._pool.block_size))

    def _step(self, ragged: Ragged) -> VarlenStep:
        return VarlenStep(kernel=self._kernel, pool=self._pool, ragged=ragged)


def ragged_of(works: Sequence[Work], inputs: StepInputs, *, block_size: int) -> Ragged:
    """Of any works and their ``flat_inputs``, on the host."""
    lengths = [work.start + work.length for work in works]
    sequence = torch.arange(len(works)).repeat_interleave(torch.tensor([work.length for work in works]))
    return Ragged(
        query_offsets=torch.tensor([0, *accumulate(work.length for work in works)], dtype=torch.int32),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        tables=inputs.tables,
        places=_places(inputs.tables, sequence, inputs.positions, block_size),
        longest_query=max(work.length for work in works),
        longest=max(lengths),
    )


def ragged_decodes(inputs: StepInputs, *, block_size: int) -> Ragged:
    """Of padded decodes, computed where ``inputs`` lie: a graph replays it."""
    positions, count = inputs.positions, len(inputs.positions)
    rows = torch.arange(count + 1, dtype=torch.int32, device=positions.device)
    return Ragged(
        query_offsets=rows,
        lengths=(positions + 1).to(torch.int32),
        tables=inputs.tables,
        places=_places(inputs.tables, rows[:-1].to(torch.int64), positions, block_size),
        longest_query=1,
        longest=inputs.tables.shape[1] * block_size,
    )


def _places(tables: Tensor, sequence: Tensor, positions: Tensor, block_size: int) -> Tensor:
    return tables[sequence, positions // block_size].to(torch.int64) * block_size + positions % block_size
