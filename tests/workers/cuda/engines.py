"""The engine of the GPU on a CPU: the same code without capture, over tiny models, gathering or with a fake kernel."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.workers.cuda.fake_varlen import FLASH_3
from workers.cuda.buckets import decode_buckets
from workers.cuda.decodes import Decoder, Decodes
from workers.cuda.engine import OverlappingEngine
from workers.cuda.inputs import LastTokens
from workers.cuda.parts import Parts
from workers.cuda.varlen import KeyOffsets, PagedKernel
from workers.kv_cache import KVPool
from workers.model import load_model
from workers.tokenizer_files import eos_ids, read_tokenizer_files
from workers.wire import ModelCard, PlanMessage, ReportMessage

BLOCK_SIZE = 4
KERNEL = PagedKernel(function=FLASH_3, page_size=BLOCK_SIZE, key_offsets=KeyOffsets.OMITTED)


def overlapping_engine(
    folder: Path, *, kernel: PagedKernel | None, max_slots: int = 5, kv_blocks: int = 40, host_blocks: int = 100
) -> OverlappingEngine:
    """In float32. ``kernel`` None: it gathers."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    model = load_model(folder, device, torch.float32)
    pool = KVPool(layers=model.layers, num_blocks=kv_blocks, block_size=BLOCK_SIZE, dtype=torch.float32, device=device)
    files = read_tokenizer_files(folder)
    card = ModelCard(
        name="tiny",
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        eos_ids=eos_ids(folder, files),
        tokenizer_digest=files.digest,
        dtype="float32",
        device="cpu",
    )
    parts, last = Parts.on(pool, model, kernel), LastTokens(max_slots, device)
    decodes = Decodes(
        decoder=Decoder(model=model, attention=parts.decode_attention, last=last),
        pool=pool,
        buckets=decode_buckets(
            max_slots=max_slots,
            max_blocks=-(-model.context_length // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            use=parts.decode_attention.table_use,
        ),
        device=device,
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


class Ahead:
    """Gives an engine its next plan before the last one's report is read, to a driver that reads reports in order.

    ``execute`` begins, and its report is made when it is first looked at.
    """

    def __init__(self, engine: OverlappingEngine) -> None:
        self._engine = engine
        self.block_size = engine.block_size

    def execute(self, plan: PlanMessage) -> ReportMessage:
        self._engine.begin(plan)
        return _Later(self._engine)  # type: ignore[return-value]  # it turns into one


class _Later:
    def __init__(self, engine: OverlappingEngine) -> None:
        self._engine = engine
        self._report: ReportMessage | None = None

    def __getattr__(self, name: str) -> object:
        if self._report is None:
            self._report = self._engine.complete()
        return getattr(self._report, name)
