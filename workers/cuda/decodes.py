"""Padded decodes: one forward pass over a bucket, captured as a CUDA graph where there is a GPU.

A graph replays the kernels of one pass over the very memory that it was captured with. So each bucket has input tensors
that never move: a step copies its integers into them and replays. Block tables, positions, and which tokens are fed
from the device are all among these integers, and everything else is computed from them within the graph.

No two graphs run at a time. So they share one pool of memory, and put their logits in one place, where these hold until
the next replay, which the stream puts after their use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from workers.attention import Attender
from workers.cuda.buckets import Bucket, Buckets, TableUse
from workers.cuda.inputs import LastTokens, StepInputs, decode_inputs
from workers.kv_cache import KVPool
from workers.model import CausalModel
from workers.slots import Work

WARM_UPS = 2
"""Passes before a capture: kernels are chosen and workspaces made in the first, which a capture could not bear."""


class DecodeAttention(Protocol):
    """Attends to one token of each row, from tensors that lie where the pool does, without asking the host."""

    @property
    def table_use(self) -> TableUse: ...

    def attender(self, inputs: StepInputs) -> Attender: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The forward pass over a bucket: a function of its inputs and of each slot's last token alone."""

    model: CausalModel
    attention: DecodeAttention
    last: LastTokens

    def logits(self, inputs: StepInputs) -> Tensor:
        """[rows, vocabulary]."""
        ids = self.last.feed(inputs)
        rows = torch.arange(len(ids), device=ids.device)
        return self.model.forward(ids, inputs.positions, rows, self.attention.attender(inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A captured graph, its inputs and what comes out."""

    graph: Any  # torch.cuda.CUDAGraph, of which a torch without CUDA has only a stand-in
    inputs: StepInputs
    logits: Tensor

    def run(self, inputs: StepInputs) -> Tensor:
        """The logits for ``inputs``, which lie on the host; they hold until the next run."""
        self.inputs.rows.copy_(inputs.rows.pin_memory(), non_blocking=True)
        self.inputs.tables.copy_(inputs.tables.pin_memory(), non_blocking=True)
        self.graph.replay()
        return self.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """All buckets; those without a ``Replay`` run as they are written."""

    decoder: Decoder
    pool: KVPool
    buckets: Buckets
    device: torch.device
    replays: Mapping[Bucket, Replay] = field(default_factory=dict)

    def bucket_of(self, works: Sequence[Work]) -> Bucket | None:
        return self.buckets.bucket_of(works, self.pool.block_size)

    def logits(self, works: Sequence[Work], tables: Tensor, bucket: Bucket) -> Tensor:
        """[works, vocabulary] of a decode that fits ``bucket``. ``tables`` on the host are those of all slots."""
        inputs = decode_inputs(works, tables, bucket, scratch_block=self.pool.scratch_block)
        replay = self.replays.get(bucket)
        logits = self.decoder.logits(inputs.on(self.device)) if replay is None else replay.run(inputs)
        return logits[: len(works)]


# --- capture: only on CUDA --------------------------------------------------------------------------------------------


def capture_all(decoder: Decoder, pool: KVPool, buckets: Buckets) -> dict[Bucket, Replay]:
    """A graph for each bucket. Raises RuntimeError where the model does what no graph can hold."""
    handle = torch.cuda.graph_pool_handle()
    device = decoder.model.device
    order = buckets.all_largest_first()
    logits = decoder.logits(idle_inputs(order[0], pool).on(device)).clone()
    return {
        bucket: capture(decoder, idle_inputs(bucket, pool).on(device), logits[: bucket.rows], handle)
        for bucket in order
    }


def capture(decoder: Decoder, inputs: StepInputs, logits: Tensor, handle: Any) -> Replay:
    """One graph from ``inputs`` to ``logits`` [rows, vocabulary], its memory from the pool behind ``handle``."""
    main = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it so
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            decoder.logits(inputs)
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=handle):
            logits.copy_(decoder.logits(inputs))
    except RuntimeError:
        torch.cuda.set_stream(main)  # a capture that fails at its end stays on the stream that it was made on
        raise
    return Replay(graph=graph, inputs=inputs, logits=logits)


def idle_inputs(bucket: Bucket, pool: KVPool) -> StepInputs:
    """Nothing but padding."""
    nobody = torch.empty(0, bucket.blocks, dtype=torch.int64)
    return decode_inputs((), nobody, bucket, scratch_block=pool.scratch_block)
