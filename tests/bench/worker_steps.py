"""Single steps of the engine, and of transformers' own forward with a static cache, on the same model."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, StaticCache

from tests.workers.engine_support import NOTHING, Options
from workers.loading import load_engine
from workers.weights import default_cache, find_model
from workers.wire import NewSequence, PrefillSpan, Sampling

CONTEXT = 128
LONG = 512
ROOM = 64


class Steps:
    """Each method that is timed waits for the device before it returns."""

    def __init__(self, *, model: str, dtype: str, device: str, threads: int | None, deterministic: bool) -> None:
        folder = find_model(model, default_cache(), print)
        options = Options(
            model=str(folder.path),
            device=device,
            dtype=dtype,
            max_slots=32,
            block_size=16,
            max_model_len=1024,
            threads=threads,
            deterministic=deterministic,
        )
        self._engine = load_engine(options, lambda _: None)
        kind = getattr(torch, self._engine.card.dtype)
        self._device = torch.device(self._engine.card.device)
        self._dense = AutoModelForCausalLM.from_pretrained(folder.path, dtype=kind, device_map=self._device)
        self._cache = StaticCache(config=self._dense.config, max_cache_len=LONG + ROOM)
        self._at = 0
        self._prompt = tuple(10 + 37 * at % 1000 for at in range(LONG))

    # --- ours ---------------------------------------------------------------------------------------------------------

    def prefill(self) -> None:
        self._engine.reset()
        self._start(1, LONG)

    def start(self, count: int) -> None:
        """Prefill so many sequences, ready to decode."""
        self._engine.reset()
        self._start(count, CONTEXT)

    def decode(self, count: int) -> None:
        self._engine.execute(replace(NOTHING, decode=tuple(range(count))))

    def _start(self, count: int, length: int) -> None:
        per_sequence = (length + ROOM) // self._engine.block_size
        starts = tuple(
            NewSequence(
                slot=slot,
                sequence_id=str(slot),
                tokens=self._prompt[:length],
                emitted=0,
                computed=0,
                max_tokens=ROOM,
                sampling=Sampling(temperature=0.0, ignore_eos=True),
                blocks=tuple(range(slot * per_sequence, (slot + 1) * per_sequence)),
            )
            for slot in range(count)
        )
        spans = tuple(PrefillSpan(slot=slot, start=0, length=length, emits=True) for slot in range(count))
        self._engine.execute(replace(NOTHING, starts=starts, prefill=spans))

    # --- theirs -------------------------------------------------------------------------------------------------------

    def dense_prefill(self) -> None:
        self._fresh_cache()
        self._forward(torch.tensor([self._prompt]))

    def dense_start(self, count: int) -> None:
        self._fresh_cache()
        self._forward(torch.tensor([self._prompt[:CONTEXT]] * count))

    def dense_decode(self, count: int) -> None:
        self._forward(torch.full((count, 1), 10))

    def _fresh_cache(self) -> None:
        self._cache = StaticCache(config=self._dense.config, max_cache_len=LONG + ROOM)
        self._at = 0

    @torch.inference_mode()
    def _forward(self, ids: torch.Tensor) -> None:
        positions = torch.arange(self._at, self._at + ids.shape[1])
        logits = self._dense(
            input_ids=ids.to(self._device),
            position_ids=positions[None].expand(ids.shape).to(self._device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        self._at += ids.shape[1]
        logits[:, -1].argmax(dim=-1).tolist()
