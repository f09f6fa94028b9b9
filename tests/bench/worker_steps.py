"""Single steps of the engine, and where their time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from tests.bench.dense import TOKENS
from tests.bench.layers.of_worker import MODEL
from tests.bench.layers.stopwatch import Clock, Stopwatch, cost_s, timing
from tests.workers.engine_support import NOTHING, Options
from workers.loading import load_engine
from workers.weights import default_cache, find_model
from workers.wire import NewSequence, PrefillSpan, Sampling

ROOM = 64
REST = "the rest"


class Steps:
    """One engine whose sequences all have one length, which a server's never have."""

    def __init__(self, *, model: str, longest: int, **settings: Any) -> None:
        folder = find_model(model, default_cache(), print)
        self.engine = load_engine(
            Options(model=str(folder.path), max_slots=32, block_size=16, max_model_len=longest + ROOM, **settings),
            print,
        )
        self.dtype: torch.dtype = getattr(torch, self.engine.card.dtype)

    def prefill(self, length: int) -> None:
        self.engine.reset()
        self._start(1, length)

    def start(self, count: int, context: int) -> None:
        """Prefill so many sequences, ready to decode."""
        self.engine.reset()
        self._start(count, context)

    def decode(self, count: int) -> None:
        self.engine.execute(replace(NOTHING, decode=tuple(range(count))))

    @contextmanager
    def parts(self, clock: Clock) -> Iterator[Callable[[], dict[str, float]]]:
        """What gives seconds by layer of what runs meanwhile."""
        stopwatch = Stopwatch(REST, clock=clock, cost_s=cost_s(clock))
        with timing(stopwatch, MODEL):
            yield stopwatch.read

    def _start(self, count: int, length: int) -> None:
        per_sequence = -(-(length + ROOM) // self.engine.block_size)
        starts = tuple(
            NewSequence(
                slot=slot,
                sequence_id=str(slot),
                tokens=TOKENS[:length],
                emitted=0,
                computed=0,
                max_tokens=ROOM,
                sampling=Sampling(temperature=0.0, ignore_eos=True),
                blocks=tuple(range(slot * per_sequence, (slot + 1) * per_sequence)),
            )
            for slot in range(count)
        )
        spans = tuple(PrefillSpan(slot=slot, start=0, length=length, emits=True) for slot in range(count))
        self.engine.execute(replace(NOTHING, starts=starts, prefill=spans))
