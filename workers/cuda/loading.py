"""From a loaded model to an engine on its GPU: choose how to attend, measure, and, once the pool is there, capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.cuda.buckets import Buckets
from workers.cuda.capability import Finding, activate_kernels, find_kernel, torchs_varlen_attn
from workers.cuda.decodes import Decoder, Decodes, capture_all
from workers.cuda.engine import OverlappingEngine
from workers.cuda.inputs import LastTokens
from workers.cuda.parts import Parts
from workers.cuda.transfer import SideStreamTransfer
from workers.cuda.trial import Shape, try_out
from workers.cuda.varlen import PagedKernel
from workers.engine_settings import EngineSettings
from workers.kv_cache import HostTransfer, KVPool
from workers.model import CausalModel
from workers.wire import ModelCard, TokenizerFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was found out before the pool: how to attend, in which pages, in how many bytes, and what to capture."""

    kernel: PagedKernel | None
    block_size: int
    room_bytes: int
    buckets: Buckets | None


def prepare(
    model: CausalModel, settings: EngineSettings, context_length: int, progress: Callable[[str], None]
) -> Setup:
    """Choose and measure, and say what was chosen and why. Raises LoadError when there is no room."""
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
    shape = Shape(max_slots=settings.max_slots, context_length=context_length, block_size=block_size)
    found = try_out(model, finding.kernel, shape, progress)
    return Setup(kernel=finding.kernel, block_size=block_size, room_bytes=found.room_bytes, buckets=found.buckets)


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
        replays = capture_all(decoder, pool, setup.buckets)
        decodes = Decodes(decoder=decoder, pool=pool, buckets=setup.buckets, device=model.device, replays=replays)
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
