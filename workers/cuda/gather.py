"""Decodes from a step's integers alone, attended to by gathering: what a graph can replay for any model.

The tensors are those of ``workers/batch.py`` for one group of singles. There they are made on the host and sent; here
they are computed on the device from ids, positions and block tables, so that a graph computes them anew each time it
is replayed over other numbers. Every row looks at as many blocks as its bucket has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.attention import Attender, PagedStep
from workers.batch import Batch, KindTensors, View, head_rows, mask_of
from workers.cuda.buckets import TableUse
from workers.cuda.inputs import StepInputs
from workers.kv_cache import KVPool, LayerKind


class GatherDecodes:
    """Attends to padded decodes on any device."""

    table_use = TableUse.READ

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._kinds = tuple(dict.fromkeys(layer.kind for layer in pool.layers))

    def attender(self, inputs: StepInputs) -> Attender:
        """For the rows of ``inputs``, which lie where the pool does."""
        return PagedStep(batch=decode_batch(inputs, self._kinds, block_size=self._pool.block_size), pool=self._pool)


def decode_batch(inputs: StepInputs, kinds: Sequence[LayerKind], *, block_size: int) -> Batch:
    """One token of each row of ``inputs``, and all rows in one group."""
    rows = torch.arange(len(inputs.positions), device=inputs.positions.device)
    return Batch(
        ids=inputs.ids,
        positions=inputs.positions,
        emit_rows=rows,
        emitting=(),  # whose they are is known to who filled the inputs
        kinds={kind: _kind_tensors(kind, inputs, block_size) for kind in kinds},
    )


def _kind_tensors(kind: LayerKind, inputs: StepInputs, block_size: int) -> KindTensors:
    positions, tables = inputs.positions, inputs.tables.to(torch.int64)
    blocks = tables.gather(1, (positions // block_size)[:, None]).squeeze(1)
    write_rows = head_rows(blocks[None], kind.kv_heads)[0] * block_size + positions % block_size
    mask = mask_of(positions, tables.shape[1] * block_size, kind.window, torch.float32)
    group = View(
        start=0,
        stop=len(positions),
        rows=head_rows(tables, kind.kv_heads).flatten(),
        mask=mask.repeat_interleave(kind.kv_heads, dim=0)[:, None, :],
    )
    return KindTensors(write_rows=write_rows.flatten(), groups=(group,), chunks=())
