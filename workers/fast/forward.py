"""The forward pass of a decoder over the kernels.

Per layer seven calls, each on all rows of a pass: norm, queries-keys-values, attention, its output added to the
residual stream, norm, gated feed-forward, and that added too. The residual stream stays float32, so in bfloat16 the
distance to the exact result is smaller than that of transformers' own forward.

Sums run in the same order whatever is computed beside a row: its logits have the same bits alone and in a crowd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from workers.fast.decoder import Decoder, Shape
from workers.fast.kernels import Buffer, Kernels, Linear
from workers.fast.step import PASS_ROWS, Pass, emit_rows, lay_out_passes
from workers.fast.structures import LayerAttention, StepAttention
from workers.kv_cache import KVPool, LayerShape
from workers.model import CausalModel
from workers.slots import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer's packed weights."""

    attention_norm: Buffer
    qkv: Linear
    query_norm: Buffer | None
    key_norm: Buffer | None
    out: Linear
    mlp_norm: Buffer
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where the keys and values of all sequences lie: of each layer, and by slot (``tables`` [slots, blocks])."""

    layers: tuple[LayerAttention, ...]
    tables: Tensor


class FastModel:
    """A decoder of the family over packed weights, in place of ``CausalModel``."""

    def __init__(
        self, decoder: Decoder, layers: Sequence[Layer], head: Linear, kernels: Kernels, *, model: CausalModel
    ) -> None:
        self.layers = model.layers
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.dtype = model.dtype
        self.device = model.device
        self.products = kernels.products
        self._shape = decoder.shape
        self._embedding = decoder.embedding
        self._rotary = decoder.rotary
        self._final_norm = Buffer.of(decoder.final_norm)
        self._packed = tuple(layers)
        self._head = head
        self._kernels = kernels
        self._queries_per_tile = kernels.most_tile_rows // (decoder.shape.heads // decoder.shape.kv_heads)
        self._memory = Memory.of(decoder.shape, model.dtype)

    def keep_in(self, pool: KVPool, tables: Tensor) -> Kept:
        """From now on the kernels keep keys and values in ``pool``, in an order of their own."""
        return Kept(
            layers=tuple(map(self._attention, self._packed, self.layers, pool.matrices, repeat(pool.block_size))),
            tables=tables,
        )

    def logits(self, works: Sequence[Work], kept: Kept, rows: Tensor) -> Tensor:
        """Logits [rows, vocabulary] in float32 for these ``rows`` of the works' tokens, in ascending order."""
        parts = self._run(works, kept, rows, self._head.logits)
        return torch.cat(parts) if parts else torch.empty(0, self.vocab_size)

    def best(self, works: Sequence[Work], kept: Kept, rows: Tensor) -> list[int | None]:
        """The best token of each row, None where there is none. No logits are written down."""
        parts = self._run(works, kept, rows, self._head.best)
        return [None if token < 0 else token for part in parts for token in part.tolist()]

    def _run(
        self, works: Sequence[Work], kept: Kept, rows: Tensor, head: Callable[[Buffer, int], Tensor]
    ) -> list[Tensor]:
        """All layers, pass by pass; what ``head`` makes of the ``rows`` of each."""
        parts = []
        for one in lay_out_passes(works, queries_per_tile=self._queries_per_tile):
            self._run_layers(one, kept)
            wanted = rows[(rows >= one.first) & (rows < one.first + one.rows)] - one.first
            if len(wanted):
                residual = Buffer.of(self._memory.residual.tensor[wanted])
                self._normalise(residual, self._final_norm, len(wanted))
                parts.append(head(self._memory.normed, len(wanted)))
        return parts

    def _run_layers(self, one: Pass, kept: Kept) -> None:
        memory, rows = self._memory, one.rows
        memory.residual.tensor[:rows] = self._embedding[one.ids]
        cosines, sines = self._rotary(one.positions)
        attention = StepAttention(
            qkv=memory.qkv.address,
            results=memory.attended.address,
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            positions=one.positions.data_ptr(),
            slots=one.slots.data_ptr(),
            tables=kept.tables.data_ptr(),
            tiles=one.tiles.data_ptr(),
            rows=rows,
            num_tiles=len(one.tiles),
            table_width=kept.tables.shape[1],
            threads=self._kernels.threads,
        )
        for layer, of_layer in zip(self._packed, kept.layers, strict=True):
            self._normalise(memory.residual, layer.attention_norm, rows)
            layer.qkv.store(memory.normed, memory.qkv, rows)
            self._kernels.attend(of_layer, attention)
            layer.out.add(memory.attended, memory.residual, rows)
            self._normalise(memory.residual, layer.mlp_norm, rows)
            layer.gate_up.gate(memory.normed, memory.gated, rows)
            layer.down.add(memory.gated, memory.residual, rows)

    def _normalise(self, residual: Buffer, weight: Buffer, rows: int) -> None:
        self._kernels.normalise(residual, weight, self._memory.normed, rows, self._shape.epsilon)

    def _attention(
        self, packed: Layer, layer: LayerShape, matrices: tuple[Tensor, Tensor], block_size: int
    ) -> LayerAttention:
        keys, values = matrices
        return LayerAttention(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            query_norm=None if packed.query_norm is None else packed.query_norm.address,
            key_norm=None if packed.key_norm is None else packed.key_norm.address,
            heads=self._shape.heads,
            kv_heads=self._shape.kv_heads,
            dim=self._shape.dim,
            block_size=block_size,
            window=self.context_length if layer.window is None else layer.window,
            scale=self._shape.scale,
            epsilon=self._shape.epsilon,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a pass works in: [PASS_ROWS, ...] each, ``residual`` in float32."""

    residual: Buffer
    normed: Buffer
    qkv: Buffer
    attended: Buffer
    gated: Buffer

    @classmethod
    def of(cls, shape: Shape, dtype: torch.dtype) -> Memory:
        def buffer(width: int, kind: torch.dtype = dtype) -> Buffer:
            return Buffer.of(torch.empty(PASS_ROWS, width, dtype=kind))

        return cls(
            residual=buffer(shape.hidden, torch.float32),
            normed=buffer(shape.hidden),
            qkv=buffer((shape.heads + 2 * shape.kv_heads) * shape.dim),
            attended=buffer(shape.heads * shape.dim),
            gated=buffer(shape.intermediate),
        )


class FastPasses:
    """The forward passes of an engine's steps, on its pool and tables."""

    def __init__(self, model: FastModel, pool: KVPool, tables: Tensor) -> None:
        self._model = model
        self._kept = model.keep_in(pool, tables)

    def emitted(self, works: Sequence[Work]) -> tuple[Sequence[Work], Tensor]:
        """Run everything; those that emit, and logits for each."""
        return _emitting(works), self._model.logits(works, self._kept, emit_rows(works))

    def best(self, works: Sequence[Work]) -> tuple[Sequence[Work], list[int | None]]:
        """Run everything; those that emit, and the best token of each, None where there is none."""
        return _emitting(works), self._model.best(works, self._kept, emit_rows(works))

    def all_logits(self, work: Work) -> Tensor:
        """Logits [length, vocabulary] of every token of a work."""
        return self._model.logits([work], self._kept, torch.arange(work.length))


def _emitting(works: Sequence[Work]) -> list[Work]:
    return [work for work in works if work.emits]
