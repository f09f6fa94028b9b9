"""From a loaded model to an engine on its GPU: choose how to attend, measure, and, once the pool is there, capture."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.attention import Backend
from workers.batch import BlockTables
from workers.chooser import Draw
from workers.cuda.buckets import Buckets, decode_buckets
from workers.cuda.capability import Finding, activate_kernels, find_kernel, torchs_varlen_attn
from workers.cuda.decodes import DecodeAttention, Decoder, Decodes, Replay, capture, capture_all, idle_inputs
from workers.cuda.engine import OverlappingEngine
from workers.cuda.gather import GatherDecodes
from workers.cuda.inputs import LastTokens
from workers.cuda.memory import LARGEST_STEP_TOKENS, Measured, measure, room_for_pool, step_lengths
from workers.cuda.transfer import SideStreamTransfer
from workers.cuda.varlen import PagedKernel, VarlenBackend
from workers.engine import gather_backend
from workers.engine_settings import EngineSettings
from workers.errors import first_line
from workers.kv_cache import HostTransfer, KVPool, block_bytes
from workers.model import CausalModel
from workers.sampler import choose
from workers.slots import SlotState, Work
from workers.wire import ModelCard, Sampling, TokenizerFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was found out before the pool: how to attend, in which pages, in how many bytes, and what to capture."""

    kernel: PagedKernel | None
    block_size: int
    room_bytes: int
    buckets: Buckets | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The two ways to attend on one pool: any step, and a decode that a graph can replay."""

    backend: Backend
    decode_attention: DecodeAttention

    @classmethod
    def on(cls, pool: KVPool, model: CausalModel, kernel: PagedKernel | None) -> Parts:
        if kernel is None:
            return cls(backend=gather_backend(model, pool), decode_attention=GatherDecodes(pool))
        varlen = VarlenBackend(kernel, pool, model.device)
        return cls(backend=varlen, decode_attention=varlen)


def prepare(
    model: CausalModel, settings: EngineSettings, context_length: int, progress: Callable[[str], None]
) -> Setup:
    """Choose and measure, and say what was chosen and why."""
    kernels = activate_kernels(torch.cuda.get_device_capability(model.device)[0])
    finding = find_kernel(
        model.layers,
        dtype=model.dtype,
        device=model.device,
        block_size=settings.block_size,
        function=torchs_varlen_attn(),
    )
    progress(describe(finding, kernels))
    block_size = settings.block_size if finding.kernel is None else finding.kernel.page_size
    trial = _Trial(model, finding.kernel, block_size, settings.max_slots, context_length)
    try:
        measured = trial.measure(progress)
    finally:
        del trial
        gc.collect()
        torch.cuda.empty_cache()
    return Setup(
        kernel=finding.kernel, block_size=block_size, room_bytes=room_for_pool(measured.bytes), buckets=measured.buckets
    )


def describe(finding: Finding, kernels: str) -> str:
    """One line for the log."""
    if finding.kernel is None:
        return f"Attention gathers blocks: {finding.why}"
    return f"Attention reads blocks in place: {finding.why} ({kernels})"


@torch.inference_mode()
def build(
    setup: Setup,
    *,
    model: CausalModel,
    pool: KVPool,
    card: ModelCard,
    files: TokenizerFiles,
    max_slots: int,
    host_blocks: int,
) -> OverlappingEngine:
    """The engine on its pool, with its graphs captured."""
    parts = Parts.on(pool, model, setup.kernel)
    last = LastTokens(max_slots, model.device)
    decodes = None
    if setup.buckets is not None:
        decoder = Decoder(model=model, attention=parts.decode_attention, last=last)
        decodes = Decodes(
            decoder=decoder,
            pool=pool,
            buckets=setup.buckets,
            device=model.device,
            replays=capture_all(decoder, pool, setup.buckets),
        )
    return OverlappingEngine(
        model=model,
        pool=pool,
        card=card,
        files=files,
        max_slots=max_slots,
        host_blocks=host_blocks,
        backend=parts.backend,
        last=last,
        decodes=decodes,
    )


def host_transfer(device: torch.device) -> HostTransfer:
    return SideStreamTransfer(device)


# --- the trial --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    bytes: Measured
    buckets: Buckets | None


class _Trial:
    """The largest step and the largest graph, on a pool that is just large enough for them."""

    def __init__(
        self, model: CausalModel, kernel: PagedKernel | None, block_size: int, max_slots: int, context_length: int
    ) -> None:
        self._model = model
        self._max_slots = max_slots
        self._lengths = step_lengths(tokens=LARGEST_STEP_TOKENS, max_slots=max_slots, context_length=context_length)
        self._max_blocks = -(-context_length // block_size)
        needed = [-(-length // block_size) for length in self._lengths]
        self._pool = KVPool(
            layers=model.layers,
            num_blocks=sum(needed),
            block_size=block_size,
            dtype=model.dtype,
            device=model.device,
        )
        self._tables = BlockTables(max_slots=max_slots, max_blocks=self._max_blocks, null_block=self._pool.null_block)
        first = 0
        for slot, count in enumerate(needed):
            self._tables.start(slot, range(first, first + count))
            first += count
        self._parts = Parts.on(self._pool, model, kernel)
        self._captured: list[Replay] = []

    def measure(self, progress: Callable[[str], None]) -> _Measured:
        """Without buckets if the model cannot be captured, which is said."""
        buckets = decode_buckets(
            max_slots=self._max_slots, max_blocks=self._max_blocks, use=self._parts.decode_attention.table_use
        )
        try:
            after_step, graph = measure(
                run_step=self._run_step, capture=lambda: self._capture(buckets), free=self._free_bytes
            )
        except RuntimeError as error:
            progress(f"Decodes run without CUDA graphs: {first_line(error)}")
            after_step, graph = measure(run_step=self._run_step, capture=None, free=self._free_bytes)
            return _Measured(bytes=self._bytes(after_step, graph, 0), buckets=None)
        return _Measured(bytes=self._bytes(after_step, graph, len(buckets.all_largest_first())), buckets=buckets)

    def _bytes(self, free: int, largest_graph: int, num_graphs: int) -> Measured:
        pool = self._pool
        per_block = block_bytes(pool.layers, pool.block_size, self._model.dtype)
        return Measured(
            free=free,
            trial_pool=pool.num_blocks * per_block,
            largest_graph=largest_graph,
            num_graphs=num_graphs,
        )

    @torch.inference_mode()
    def _run_step(self) -> None:
        """Prompts, and a nucleus for every slot, which is the most that sampling needs."""
        works = [_prompt(slot, length) for slot, length in enumerate(self._lengths)]
        step = self._parts.backend.prepare(works, self._tables.tensor)
        logits = self._model.logits(step, step.emit_rows)[:1].expand(self._max_slots, -1).contiguous()
        draw = Draw(sampling=Sampling(top_p=0.9), number=0.5)
        choose(logits, dict.fromkeys(range(self._max_slots), draw))
        torch.cuda.synchronize()

    @torch.inference_mode()
    def _capture(self, buckets: Buckets) -> None:
        decoder = Decoder(
            model=self._model,
            attention=self._parts.decode_attention,
            last=LastTokens(self._max_slots, self._model.device),
        )
        inputs = idle_inputs(buckets.all_largest_first()[0], self._pool).on(self._model.device)
        self._captured.append(capture(decoder, inputs, torch.cuda.graph_pool_handle()))
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
