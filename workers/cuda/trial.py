"""The largest step and the largest graph, run once to see what memory they take (see ``memory.py``)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.batch import BlockTables
from workers.chooser import Draw
from workers.cuda.buckets import Buckets, decode_buckets
from workers.cuda.decodes import Decoder, Replay, capture, idle_inputs
from workers.cuda.inputs import LastTokens
from workers.cuda.memory import LARGEST_STEP_TOKENS, Measured, room_for_pool, step_lengths
from workers.cuda.parts import Parts
from workers.cuda.varlen import PagedKernel
from workers.errors import LoadError, first_line
from workers.kv_cache import KVPool, block_bytes
from workers.model import CausalModel
from workers.sampler import choose
from workers.slots import SlotState, Work
from workers.wire import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large things may get."""

    max_slots: int
    context_length: int
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Bytes for the KV pool, and what to capture (None: the model cannot be captured)."""

    room_bytes: int
    buckets: Buckets | None


def try_out(model: CausalModel, kernel: PagedKernel | None, shape: Shape, progress: Callable[[str], None]) -> Found:
    """Run both, and leave nothing of them behind. Raises LoadError when even the step has no room."""
    lengths = step_lengths(tokens=LARGEST_STEP_TOKENS, max_slots=shape.max_slots, context_length=shape.context_length)
    try:
        return _Trial(model, kernel, shape, lengths).run(progress)
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"There is not enough memory on the GPU for a step of {sum(lengths)} tokens beside the model."
        ) from error
    finally:
        gc.collect()
        torch.cuda.empty_cache()


class _Trial:
    """On a pool that is just large enough for it."""

    def __init__(self, model: CausalModel, kernel: PagedKernel | None, shape: Shape, lengths: list[int]) -> None:
        self._model = model
        self._shape = shape
        self._lengths = lengths
        needed = [-(-length // shape.block_size) for length in lengths]
        self._pool = KVPool(
            layers=model.layers,
            num_blocks=sum(needed),
            block_size=shape.block_size,
            dtype=model.dtype,
            device=model.device,
        )
        self._max_blocks = -(-shape.context_length // shape.block_size)
        self._tables = BlockTables(
            max_slots=shape.max_slots, max_blocks=self._max_blocks, null_block=self._pool.null_block
        )
        first = 0
        for slot, count in enumerate(needed):
            self._tables.start(slot, range(first, first + count))
            first += count
        self._parts = Parts.on(self._pool, model, kernel)
        self._captured: list[Replay] = []

    def run(self, progress: Callable[[str], None]) -> Found:
        """Without graphs, which is said, if the model cannot be captured or they have no room."""
        use = self._parts.decode_attention.table_use
        buckets = decode_buckets(
            max_slots=self._shape.max_slots, max_blocks=self._max_blocks, block_size=self._shape.block_size, use=use
        )
        self._run_step()
        after_step = self._free_bytes()
        torch.cuda.empty_cache()  # a capture does so first, and what it frees would hide what it takes
        before = self._free_bytes()
        try:
            self._capture(buckets)
        except RuntimeError as error:
            progress(f"Decodes run without CUDA graphs: {first_line(error)}")
            return Found(room_bytes=room_for_pool(self._measured(after_step, graph=0, num_graphs=0)), buckets=None)
        graph = max(before - self._free_bytes(), 0)
        measured = self._measured(after_step, graph=graph, num_graphs=len(buckets.all_largest_first()))
        return Found(room_bytes=room_for_pool(measured), buckets=buckets)

    def _measured(self, free: int, *, graph: int, num_graphs: int) -> Measured:
        per_block = block_bytes(self._pool.layers, self._pool.block_size, self._model.dtype)
        return Measured(
            free=free, trial_pool=self._pool.num_blocks * per_block, largest_graph=graph, num_graphs=num_graphs
        )

    @torch.inference_mode()
    def _run_step(self) -> None:
        """Prompts, and a nucleus for every slot, which is the most that sampling needs."""
        works = [_prompt(slot, length) for slot, length in enumerate(self._lengths)]
        step = self._parts.backend.prepare(works, self._tables.tensor)
        max_slots = self._shape.max_slots
        logits = self._model.logits(step, step.emit_rows)[:1].expand(max_slots, -1).contiguous()
        draw = Draw(sampling=Sampling(top_p=0.9), number=0.5)
        choose(logits, dict.fromkeys(range(max_slots), draw))
        torch.cuda.synchronize()

    @torch.inference_mode()
    def _capture(self, buckets: Buckets) -> None:
        device = self._model.device
        last = LastTokens(self._shape.max_slots, device)
        decoder = Decoder(model=self._model, attention=self._parts.decode_attention, last=last)
        inputs = idle_inputs(buckets.all_largest_first()[0], self._pool).on(device)
        logits = decoder.logits(inputs).clone()
        self._captured.append(capture(decoder, inputs, logits, torch.cuda.graph_pool_handle()))
        torch.cuda.synchronize()

    def _free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._model.device)[0]


def _prompt(slot: int, length: int) -> Work:
    state = SlotState(
        slot=slot,
        sequence_id="trial",
        tokens=[0] * length,
        prompt_length=length,
        emitted=0,
        computed=length,
        max_tokens=1,
        sampling=Sampling(),
        blocks=[],
    )
    return Work(state=state, start=0, length=length, emits=True)
